"""The phases of a journal's takeover, whatever was committed and wherever the journal ends."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.owned_journal import CatchingUp, Live, Refolding, Replaying
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.memory_source import MemorySource
from rollcall.consumers.log.protocols import Listener, Record
from rollcall.consumers.loop.poison_detection import split_metadata
from rollcall.schemas.messages import Event, RolloutFinished
from tests.support.hand_answers import answer, ask, calls, killed, steps
from tests.support.programs import ASKS, WALKS
from tests.support.rig import Rig, role_of
from tests.support.tiers import examples

NEXT = {
    Replaying: {CatchingUp, Live},
    Refolding: {Live},
    CatchingUp: {Live},
    Live: set[type](),
}
EVENTS = st.lists(
    st.sampled_from(["ask", "walk", "answer", "answer", "hole", "commit"]), max_size=12
)
COMMITS = st.sampled_from(["as it is", "lost", "by hand"])
PLACE = ("t.rollout.events", 0)
QUIET_TURNS = 5


class OneByOne(MemorySource):
    """A member that reads a record at a time."""

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        return super().poll(timeout_s, min(most, 1))


class OneByOneLog(MemoryLog):
    def source(self, group: str, topics: Sequence[str], listener: Listener) -> MemorySource:
        return OneByOne(self, self.group(group), topics, listener)


def commands(rig: Rig) -> list[Any]:
    return [*calls(rig), *steps(rig)]


def answered(rig: Rig) -> set[bytes]:
    return {event.command_id for event in rig.events(object)}


def happen(rig: Rig, event: str, number: int) -> None:
    """Let one thing happen to the log; an answer is to the oldest command that has none."""
    if event in ("ask", "walk"):
        ask(rig, f"r{number}", ASKS if event == "ask" else WALKS)
    elif event == "hole":
        rig.log.hole(rig.topics.events, 0)
    elif event == "answer":
        known = answered(rig)
        waiting = [each for each in commands(rig) if each.command_id not in known]
        if waiting:
            answer(rig, waiting[0])


def take_over(rig: Rig) -> list[type]:
    """Let a new worker settle; return the phases that it goes through."""
    loop, phases = rig.agents("a2"), list[type]()
    sent, committed = len(commands(rig)), rig.log.group("t.agents").committed.get(PLACE, (0, ""))
    metadata, _ = split_metadata(committed[1])
    quiet = 0
    while quiet < QUIET_TURNS:
        quiet = 0 if loop.turn(0.0) else quiet + 1
        owned = role_of(loop).owned[0]
        if not phases or phases[-1] is not type(owned.phase):
            phases.append(type(owned.phase))
        if isinstance(owned.phase, Replaying):
            assert owned.commit_metadata("") == metadata
        if isinstance(owned.phase, Replaying | Refolding):
            assert len(commands(rig)) == sent
    return phases


@settings(max_examples=examples(60))
@given(EVENTS, EVENTS, COMMITS)
def test_a_takeover_goes_forward_through_its_phases_and_sends_only_open_commands(
    before: list[str], after: list[str], commit: str
) -> None:
    # Given a worker that was killed, and a journal that has grown since
    rig = Rig(make_log=OneByOneLog)
    first = rig.agents("a1")
    for number, event in enumerate(before):
        happen(rig, event, number)
        if event == "commit":
            rig.commit(first)
        rig.settle(first)
    killed(first)
    for number, event in enumerate(after, len(before)):
        happen(rig, event, number)
    committed = rig.log.group("t.agents").committed
    if commit == "lost":
        committed.clear()
    elif commit == "by hand":
        committed[PLACE] = rig.log.bounds(rig.topics.events)[0][1], "by hand"
    earlier, known = commands(rig), answered(rig)

    # When another worker takes the journal over
    phases = take_over(rig)

    # Then it goes forward through the phases, to the last one
    assert phases[-1] is Live
    assert all(then in NEXT[now] for now, then in pairwise(phases))
    # And sends nothing that was answered, but all that is open
    sent = Counter(each.command_id for each in commands(rig))
    sent.subtract(each.command_id for each in earlier)
    assert known.isdisjoint(name for name, count in sent.items() if count)
    assert max(sent.values(), default=0) <= 1
    entries = rig.log.all(rig.topics.events)
    journal = Journal(0, FoldContext(program_of, Random), "refold")
    for record in entries:
        event = rig.codec.decode(record.value, Event)
        journal.apply_event(event, record.offset, record.timestamp_ms)
    for rollout in journal.open.values():
        assert {each.command_id for each in rollout.resend()} <= sent.keys()
    # And each end has a trajectory
    ends = {event.rollout_id for event in rig.events(RolloutFinished)}
    assert {each.rollout_id for each in rig.trajectories()} == ends
