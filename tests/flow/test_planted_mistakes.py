"""Five known mistakes, planted into the in-memory run: the audit must find each of them.

Each is tried over a few schedules; the first in which it is found is named, and that same schedule
without the mistake must pass.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import structlog

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.agents.fold.journal import START, AppliedEvent, Journal
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.agents.worker import AgentsRole
from rollcall.consumers.log.protocols import Held, Record
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.schemas.messages import (
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutStarted,
)
from tests.support.chaos_schedule import Chaos, HarmedLog, LazyPublisher, NoPeace
from tests.support.tiers import cases

SCHEDULES = 60
STEPS = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class NoCause(LazyPublisher):
    """Its sends count for no cause, so that commits do not wait for their acks."""

    def send(self, *arguments: Any, cause: Any = None, refused: Any = None, **named: Any) -> None:
        del cause, refused
        super().send(*arguments, **named)


class CommitsBeforeAcks(HarmedLog):
    def publisher(self, *, bulk: bool = False) -> LazyPublisher:
        del bulk
        return NoCause(self, self.life)


class TryInTheSeed(Outbox):
    """Samples anew when it asks again."""

    def _command(self, topic: str, command: Command, cause: Record | None) -> None:
        if isinstance(command, ModelCall):
            command = replace(command, seed=command.seed + command.tries)
        super()._command(topic, command, cause)


class OwnJournal(AgentsRole):
    """Folds its partitions with a journal that has different rules."""

    journal: type[Journal] = Journal

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        start = super().assigned(held, progress)
        if held.topic == self.names.events:
            owned = self.owned[held.partition]
            begin = Watermark(owned.journal.bulk_low, owned.journal.last)
            owned.journal = self.journal(held.partition, self.world, self.name, begin)
        return start


class ReadsSettings(Journal):
    """Every worker uses its own settings instead of those stored with the start."""

    def apply_event(
        self, event: Event, offset: int, now_ms: int, *, silent: bool = False
    ) -> AppliedEvent:
        if isinstance(event.body, RolloutStarted):
            asked = event.body.request
            limits = replace(asked.limits, max_tries=1 + len(self.writer) % 2)
            body = replace(event.body, request=replace(asked, limits=limits))
            event = replace(event, body=body)
        return super().apply_event(event, offset, now_ms, silent=silent)


class StartsAgain(Journal):
    """A request that is delivered again starts again."""

    def apply_event(
        self, event: Event, offset: int, now_ms: int, *, silent: bool = False
    ) -> AppliedEvent:
        last = self.last
        if isinstance(event.body, START) and last is not None:
            self.chain = replace(self.chain, last=min(last, event.body.request_offset - 1))
        taken = super().apply_event(event, offset, now_ms, silent=silent)
        if last is not None:
            self.chain = replace(self.chain, last=max(last, self.last or 0))
        return taken


class AppliesLateAnswers(Journal):
    """Takes an answer to an earlier try for one to the present try."""

    def apply_event(
        self, event: Event, offset: int, now_ms: int, *, silent: bool = False
    ) -> AppliedEvent:
        rollout = self.open.get(event.rollout_id)
        waits = rollout.attempt.outstanding.get(event.position) if rollout else None
        late = waits is not None and event.tries < waits.tries
        if late and waits and isinstance(event.body, ModelAnswered | EnvironmentStepped):
            event = replace(event, tries=waits.tries)
        return super().apply_event(event, offset, now_ms, silent=silent)


def folding(journal_: type[Journal]) -> type[AgentsRole]:
    class Planted(OwnJournal):
        journal = journal_

    return Planted


ASKED_TWICE: dict[str, Any] = {"again": 16.0}
"""Rare in a schedule where nobody asks for a rollout again."""
MISTAKES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "commit before ack": ({"make_log": CommitsBeforeAcks}, {"I1", "I3", "I6", "I8"}),
    "try in the seed": ({"outbox": TryInTheSeed}, {"I3"}),
    "settings read by the fold": ({"agents": folding(ReadsSettings)}, {"I2", "I3", "I5"}),
    "a start counted below the last one": ({"agents": folding(StartsAgain), **ASKED_TWICE}, {"I8"}),
    "a late answer applied": ({"agents": folding(AppliesLateAnswers)}, {"I2", "I3", "I5"}),
}


@pytest.mark.parametrize("mistake", cases(MISTAKES, 2))
def test_planted_mistake_is_found_and_the_clean_schedule_passes(mistake: str) -> None:
    plant, expected = MISTAKES[mistake]

    for seed in range(SCHEDULES):
        found = breaches(seed, **plant)
        if found & expected:
            break
    else:
        pytest.fail(f"{mistake} was not found in {SCHEDULES} schedules")

    print(f"{mistake}: found in Chaos({seed}) as {sorted(found)}")
    shape = {name: value for name, value in plant.items() if name in ASKED_TWICE}
    chaos = Chaos(seed, **shape).run(STEPS)
    assert chaos.unexplained(chaos.report()) == []


def breaches(seed: int, **plant: Any) -> set[str]:
    """The invariants that a schedule breaks. A schedule that never settles still leaves a log."""
    chaos = Chaos(seed, **plant)
    with suppress(NoPeace):
        chaos.run(STEPS)
    return {breach.invariant for breach in chaos.unexplained(chaos.report())}
