"""A task, solved by `react` in boxes and graded in others: only correct patches count."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rollcall.compose.workers.served_policy import scripted_engine
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.consumers.environments.worker_hosts import WorkerHosts
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.rewards.scoring_host import ScoringHosts
from rollcall.producers.submit import requests_of
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import request_of
from rollcall.schemas.ids import call_seed
from rollcall.schemas.messages import (
    EnvironmentStep,
    Instance,
    RolloutRequest,
    ScoredTrajectory,
    Task,
)
from rollcall.schemas.objects import ObjectStore
from tests.support.engines import has, left_out
from tests.support.rig import Rig
from tests.support.task_directories import TASK, write_task
from tests.support.tiers import cases

SCORERS = ("resolved", "tests_passed", "no_submission")
SHARE = 0.6
ROLLOUTS = {"oracle": 1, "null": 1, "noisy": 2}
PATIENCE_S = 240.0


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "objects"))


@pytest.fixture
def rig(store: ObjectStore) -> Iterator[Rig]:
    rig = Rig(policies=tuple(ROLLOUTS), objects=store)
    yield rig
    rig.close()


def requests(task: HarborTask) -> list[RolloutRequest]:
    """As `tasks request` prints and `submit` reads them."""
    line = request_of(task, agent="react", max_tokens=10_000)
    line["limits"]["max_turns"] = line["task"]["environment_config"]["max_steps"] = 3
    lines = [
        json.dumps({**line, "rollout_id": f"{policy}{number}", "policy_id": policy}).encode()
        for policy, count in ROLLOUTS.items()
        for number in range(count)
    ]
    return list(requests_of(lines, lambda request: None, defaults=RolloutRequest("", Task())))


def is_gold(request: RolloutRequest) -> bool:
    """Whether its policy knows the answer, by the seed of its first call."""
    drawn = random.Random(call_seed(request.seed_key, 1, 1)).random()
    return {"oracle": True, "null": False}.get(request.policy_id, drawn < SHARE)


def earned(request: RolloutRequest) -> list[float]:
    """By SCORERS: half of the tests pass where something else was handed in."""
    if is_gold(request):
        return [1.0, 1.0, 0.0]
    return [0.0, 0.0, 1.0] if request.policy_id == "null" else [0.0, 0.5, 0.0]


def all_scored(rig: Rig, count: int, loops: Sequence[Loop]) -> dict[str, ScoredTrajectory]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := rig.read(rig.topics.scored, ScoredTrajectory)) < count:
        assert time.monotonic() < deadline, len(found)
        for loop in loops:
            loop.turn(0.001)
    return {each.trajectory.rollout_id: each for each in found}


@pytest.mark.parametrize(
    ("kind", "mode"),
    cases([("local", "persistent"), ("bubblewrap", "persistent"), ("bubblewrap", "ephemeral")]),
)
def test_only_correct_patches_are_resolved(
    rig: Rig, kind: str, mode: str, store: ObjectStore, tmp_path: Path
) -> None:
    if kind == "bubblewrap" and not has("bwrap"):
        left_out("bubblewrap", "tasks that are solved and judged in its boxes")
    toml = TASK.replace("memory_mb = 512\n", f'memory_mb = 512\nmode = "{mode}"\n')
    task = read_task(write_task(tmp_path / "sums", {"task.toml": toml}))
    loop_thread, told = EventLoopThread(threaded=False), list[Instance]()
    boxes = WorkerBoxes(
        loop_thread, Leases(tmp_path / "leases", "e1"), told.append, warm=2, box=kind
    )
    hosts = WorkerHosts(loop_thread, listen=_never, processes=_never, objects=store, boxes=boxes)
    asked = requests(task)
    for request in asked:
        rig.ask(request)

    scored = all_scored(rig, len(asked), [
        rig.agents(),
        rig.models(scripted_engine("oracle", "oracle", task.directory)),
        rig.models(scripted_engine("null", "null")),
        rig.models(scripted_engine("noisy", "noisy", task.directory, SHARE)),
        rig.environments(slots={"box": 4}, loop_thread=loop_thread, hosts=hosts, boxes=boxes),
        rig.rewards(
            scorers=SCORERS, hosts=ScoringHosts(box=kind, objects=store), timeout_s=PATIENCE_S
        ),
    ])  # fmt: skip

    # Every rollout has the reward that its policy has earned, and why
    values = {name: [each.value for each in one.rewards] for name, one in scored.items()}
    assert values == {request.rollout_id: earned(request) for request in asked}
    whys = Counter(one.rewards[0].reason.partition(":")[0] for one in scored.values())
    assert 0 < whys["failed"] < ROLLOUTS["noisy"]
    assert whys["empty"] == ROLLOUTS["null"]

    # No step was asked for twice, every box was of the task's mode, none is left
    steps = rig.read(rig.topics.steps, EnvironmentStep)
    named = [(each.rollout_id, each.position) for each in steps if each.kind != "close"]
    assert len(named) == len(set(named))
    assert {each.mode for each in told if each.kind == "lent"} == {mode}
    assert audit(rig, drained=True).breaches == []
    rig.close()
    assert {each.box_id for each in told} & set(asyncio.run(_found(kind))) == set()


async def _found(kind: str) -> Sequence[str]:
    return await driver(kind).found()


def _never() -> None:
    msg = "this is not asked for"
    raise AssertionError(msg)
