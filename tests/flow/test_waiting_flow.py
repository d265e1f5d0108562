"""Rollouts in waiting environments, on the in-memory log, end as in environments without waits."""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import Limits, RolloutRequest, ScoredTrajectory
from tests.support.chaos_schedule import Chaos
from tests.support.lake import LAKE, crossing, walk
from tests.support.rig import Rig, source_of
from tests.support.tiers import cases
from tests.support.waiting_lake import WAITING_LAKE

SLOTS = {"hosted": 2}
ENOUGH = {"hosted": 8}
"""For both sessions of four rollouts: where a close was lost, a slot is taken until the lease."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Schedules log a lot."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def waiting(request: RolloutRequest) -> RolloutRequest:
    return replace(request, task=replace(request.task, environment=WAITING_LAKE))


class Few(Rig):
    """Its environments workers hold only so many sessions each."""

    def environments(self, name: str = "e1", *args: Any, **options: Any) -> Loop:
        return super().environments(name, *args, **({"slots": SLOTS} | options))


class Waiting(Chaos):
    """Every rollout is in a lake that waits."""

    slots = ENOUGH

    def _request(self, number: int) -> RolloutRequest:
        return waiting(super()._request(number))


def crossed(rig: Rig, requests: list[RolloutRequest], **options: Any) -> list[ScoredTrajectory]:
    loops = [
        rig.agents(),
        rig.models(ScriptedEngine("p", walk)),
        rig.environments(**options),
        rig.rewards(),
    ]
    for request in requests:
        rig.ask(request)
    deadline = time.monotonic() + 60.0
    while len(scored := rig.read(rig.topics.scored, ScoredTrajectory)) < len(requests):
        assert time.monotonic() < deadline, f"{len(scored)} of {len(requests)}"
        for loop in loops:
            loop.turn(0.0)
    rig.close()
    return sorted(scored, key=lambda each: each.trajectory.rollout_id)


@pytest.mark.parametrize("threads", [0, 1])
def test_waiting_environments_give_the_same_rollouts_as_immediate_ones(
    threads: int,
) -> None:
    requests = [crossing(number) for number in range(7)]

    plain = crossed(Rig(), requests, threads=threads)
    waited = crossed(Few(), [waiting(request) for request in requests], threads=threads)

    assert [each.total for each in waited] == [1.0] * 7
    for one, other in zip(plain, waited, strict=True):
        assert one.trajectory.steps == other.trajectory.steps
        assert one.trajectory.sequences == other.trajectory.sequences
        assert other.trajectory.status == "finished"
        assert json.loads(other.trajectory.request.task.environment_config) == LAKE  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", cases(range(24), 6))
def test_every_waiting_rollout_ends_as_the_audit_requires_under_faults(
    seed: int,
) -> None:
    chaos = Waiting(seed)
    try:
        chaos.run().check()
    finally:
        chaos.rig.close()


def test_heir_of_a_worker_with_a_long_queue_continues() -> None:
    """Records of a killed worker are suspected: few of them are processed at once, or one alone."""
    rig = Few(partitions=4, clock=time.time)
    limits = Limits(open_timeout_s=300.0)
    requests = [replace(waiting(crossing(n)), limits=limits) for n in range(160)]
    others = [rig.agents(), rig.models(ScriptedEngine("p", walk)), rig.rewards()]
    for request in requests:
        rig.ask(request)

    def scored() -> int:
        found = rig.read(rig.topics.scored, ScoredTrajectory)
        return len({each.trajectory.rollout_id for each in found})

    def work(environments: Loop, most: int) -> None:
        deadline = time.monotonic() + 60.0
        while scored() < most:
            assert time.monotonic() < deadline, f"{scored()} of {most}"
            for loop in (environments, *others):
                loop.turn(0.0)

    first = rig.environments("e1", slots={"hosted": 32})
    work(first, 20)
    source_of(first).kill()
    work(rig.environments("e2", slots={"hosted": 32}), len(requests))
    rig.close()
