"""Waits derived from records alone: every reason, and how it ends."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import Agent, CallModel, Task, user
from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.history.waiting.open_work import OpenWork, PartitionOwner, ScoringPosition
from rollcall.consumers.history.waiting.waits import Wait, waits_of
from rollcall.schemas.messages import (
    AttemptStarted,
    EnvironmentStep,
    Event,
    Instance,
    Limits,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.topics import Topics
from tests.support.journals import DICED, Dice, Entry, Hand, fold, request, world_of

TOPICS = Topics("t.")
PARTITION = 3
FIRST_MS = 1_000_010
"""When a hand writes its first entry."""
SCORING = ScoringPosition("default")


def crowd(task: Task) -> Agent:
    """Six calls side by side."""
    yield [CallModel([user(str(n))]) for n in range(6)]


def work_of(
    hand: Hand, *scorings: ScoringPosition, commit: int = 0, group_id: str = ""
) -> OpenWork:
    """The open work that a reader of this journal knows."""
    waits = OpenWork(TOPICS, hand.journal.world, scorings or (SCORING,), group_id=group_id)
    waits.begin(PARTITION, Watermark(0), commit)
    for entry in hand.entries:
        waits.take_event(entry.event, PARTITION, entry.offset, entry.at_ms)
    return waits


def send(waits: OpenWork, command: Output, group: str, topic: str, partition: int = 7) -> None:
    """Put a command on its work topic."""
    assert isinstance(command, ModelCall | EnvironmentStep)
    waits.take_command(command.command_id.hex().encode(), PartitionOwner(group, topic, partition))


def scored(trajectory: Trajectory, scoring_id: str = "default") -> ScoredTrajectory:
    return ScoredTrajectory(scoring_id, trajectory, (), 1.0, "t.trajectories", PARTITION, 0)


def ended(hand: Hand, asked: RolloutRequest) -> Trajectory:
    """Run one single turn to its end."""
    (step,) = hand.start(asked)
    (call,) = hand.show(step)
    (step,) = hand.say(call, "yes")
    (decision,) = hand.show(step)
    return hand.end(decision)


def only(waits: OpenWork) -> Wait:
    (wait,) = waits_of(waits)
    return wait


def test_an_uncounted_request_waits_for_admission() -> None:
    hand = Hand()
    hand.start("react")
    waits = work_of(hand)
    waits.take_request(request("r"), PARTITION, 0, 5)
    waits.take_request(request("late", group_id="g"), PARTITION, 1, 77)

    wait = next(wait for wait in waits_of(waits) if wait.rollout_id == "late")

    assert (wait.reason, wait.group_id, wait.since_ms, wait.deadline_ms) == (
        "admission",
        "g",
        77,
        None,
    )
    assert wait.at == PartitionOwner("t.agents", "t.rollout.requests", PARTITION)


def test_a_rollout_without_its_first_command_waits_for_admission() -> None:
    hand = Hand()
    hand.start("react")

    wait = only(work_of(hand))

    assert (wait.reason, wait.since_ms, wait.deadline_ms) == ("admission", FIRST_MS, None)
    assert wait.at == PartitionOwner("t.agents", "t.rollout.events", PARTITION)


def test_a_step_waits_on_its_commands_partition() -> None:
    hand = Hand()
    (step,) = hand.start("react", limits=Limits(step_timeout_s=2.5))
    waits = work_of(hand)
    assert waits.wanted_commands() == {("t.environments", "t.env.steps"): FIRST_MS}
    assert waits.wanted_keys() == {b"r"}
    send(waits, step, "t.environments", "t.env.steps")

    wait = only(waits)

    assert (wait.reason, wait.what) == ("step", "maze 1/0/0")
    assert (wait.since_ms, wait.deadline_ms) == (FIRST_MS, FIRST_MS + 6250)
    assert wait.at == PartitionOwner("t.environments", "t.env.steps", 7)


def told(waits: OpenWork, *kinds: str, attempt: int = 1, since_ms: int = 3_600_000) -> None:
    """An environments worker's records about a step that waits for a slot."""
    for kind in kinds:
        instance = Instance("w", "e1", kind, rollout_id="r", attempt=attempt, reason="box, hosted")
        waits.take_instance(instance, since_ms)


def test_a_step_that_waits_for_a_slot_shows_which_and_since_when() -> None:
    hand = Hand()
    (step,) = hand.start("react")
    waits = work_of(hand)
    send(waits, step, "t.environments", "t.env.steps")
    assert waits.first_opening_ms() == FIRST_MS
    told(waits, "waiting")

    assert only(waits).what == "maze 1/0/0, waits for a box, hosted slot since 01:00:00"


@pytest.mark.parametrize("over", ["lent", "failed"])
def test_a_step_with_its_slot_does_not_wait_for_one(over: str) -> None:
    hand = Hand()
    (step,) = hand.start("react")
    waits = work_of(hand)
    send(waits, step, "t.environments", "t.env.steps")
    told(waits, "waiting", over)
    told(waits, "waiting", attempt=2)

    assert only(waits).what == "maze 1/0/0"


def test_a_retried_call_waits_since_its_failure_and_names_its_try() -> None:
    hand = Hand()
    (step,) = hand.start("react", limits=Limits(call_timeout_s=9.0))
    (call,) = hand.show(step)
    (again,) = hand.fail(call)
    waits = work_of(hand)
    unsent = only(waits)
    send(waits, again, "t.models.p", "t.model.calls.p")

    wait = only(waits)

    assert (wait.reason, wait.what) == ("call", "p 1/1/1")
    assert (wait.since_ms, wait.deadline_ms) == (hand.now_ms, hand.now_ms + 22_500)
    assert wait.at == PartitionOwner("t.models.p", "t.model.calls.p", 7)
    assert unsent.what == "p 1/1/1, not sent yet"
    assert unsent.at == PartitionOwner("t.agents", "t.rollout.events", PARTITION)


def test_no_wait_outlasts_its_rollouts_deadline() -> None:
    hand = Hand()
    (step,) = hand.start("react", limits=Limits(rollout_timeout_s=1.0))
    waits = work_of(hand)
    send(waits, step, "t.environments", "t.env.steps")

    assert only(waits).deadline_ms == FIRST_MS + 1000


def test_effects_made_together_wait_one_by_one() -> None:
    hand = Hand(DICED["side_by_side"])
    left, right = hand.start("side_by_side")
    hand.show(left)
    waits = work_of(hand)
    send(waits, right, "t.environments", "t.env.steps")

    assert only(waits).what == "maze 1/1/0"


def test_a_rollout_is_listed_once_for_each_reason() -> None:
    hand = Hand(crowd)
    hand.start("crowd")
    waits = work_of(hand)
    for offset in (7, 8, 9):  # one id, asked for again and again
        waits.take_request(request("again"), PARTITION, offset, FIRST_MS + offset)
    twice = ended(Hand(), request("twice", "single_turn"))
    for offset in (20, 30):
        at = replace(twice, journal_partition=PARTITION, first_offset=offset, last_offset=offset)
        waits.take_trajectory(at, PARTITION, offset)

    told = {(wait.rollout_id, wait.reason): wait for wait in waits_of(waits)}

    assert len(told) == len(waits_of(waits)) == 3
    assert told["again", "admission"].since_ms == FIRST_MS + 7
    assert told["r", "admission"].what.startswith("started, first command not sent")
    assert told["twice", "reward"].what == "scoring 'default'"


def test_concurrent_calls_are_listed_in_one_line() -> None:
    hand = Hand(crowd)
    calls = hand.start("crowd")
    waits = work_of(hand)
    for call in calls:
        send(waits, call, "t.models.p", "t.model.calls.p")

    wait = only(waits)

    assert (wait.reason, wait.what) == ("call", "p 1/0/0, p 1/1/0, p 1/2/0, p 1/3/0 and 2 more")


def test_a_decided_end_waits_for_an_agents_worker_to_write_it() -> None:
    hand = Hand()
    (step,) = hand.start("single_turn")
    (call,) = hand.show(step)
    (step,) = hand.say(call, "yes")
    hand.show(step)

    wait = only(work_of(hand))

    assert (wait.reason, wait.since_ms) == ("decision", hand.now_ms)
    assert wait.what == "an agents worker has to write its end: finished"
    assert wait.at == PartitionOwner("t.agents", "t.rollout.events", PARTITION)


def test_a_decided_attempt_waits_for_an_agents_worker_to_begin_it() -> None:
    hand = Hand()
    (step,) = hand.start("react", limits=Limits(max_attempts=2))
    hand.fail(step, "session_lost", retriable=False)

    assert only(work_of(hand)).what.startswith("an agents worker has to begin attempt 2")


def test_a_rollout_with_an_unloadable_program_says_so_and_hides_no_other() -> None:
    # Given a journal of two rollouts, one of which runs a program that only its workers have
    hand = Hand(DICED["stubborn"])
    (step,) = hand.start(request("theirs", "stubborn"))
    hand.show(step)
    (step,) = hand.start(request("ours"))
    here = OpenWork(TOPICS, world_of({}), (SCORING,))
    here.begin(PARTITION, Watermark(0), 0)

    # When it is read where that program cannot be loaded
    for entry in hand.entries:
        here.take_event(entry.event, PARTITION, entry.offset, entry.at_ms)
    send(here, step, "t.environments", "t.env.steps")

    # Then its wait is unknown, and the other one is listed as usual
    theirs, ours = waits_of(here)
    assert (theirs.rollout_id, theirs.reason) == ("theirs", "program")
    assert "unknown program 'stubborn'" in theirs.what
    assert (ours.rollout_id, ours.reason) == ("ours", "step")


@pytest.mark.parametrize("known", ["committed", "above the commit", "scored"])
def test_an_ended_rollout_waits_for_its_reward_until_it_is_scored(known: str) -> None:
    hand = Hand()
    trajectory = ended(hand, request("r", "single_turn"))
    before = work_of(hand)
    before.take_trajectory(trajectory, PARTITION, 4)
    scoring = {
        "committed": ScoringPosition("default", {PARTITION: 5}),
        "above the commit": ScoringPosition("default", {PARTITION: 2}, {PARTITION: {4}}),
        "scored": SCORING,
    }[known]
    after = work_of(hand, scoring)
    after.take_trajectory(trajectory, PARTITION, 4)
    if known == "scored":
        assert after.scored_keys() == {b"r"}
        after.take_scored(scored(trajectory), 99)

    wait = only(before)

    assert (wait.reason, wait.what, wait.since_ms) == (
        "reward",
        "scoring 'default'",
        trajectory.ended_ms,
    )
    assert wait.at == PartitionOwner("t.rewards.default", "t.trajectories", PARTITION)
    assert waits_of(after) == []


def test_each_scoring_named_by_a_request_is_awaited_separately() -> None:
    hand = Hand()
    trajectory = ended(hand, request("r", "single_turn", scorings=("fast", "slow")))
    waits = work_of(hand, ScoringPosition("fast", {PARTITION: 9}), ScoringPosition("slow"))
    waits.take_trajectory(trajectory, PARTITION, 4)

    assert only(waits).what == "scoring 'slow'"


def test_a_request_without_scorings_waits_for_the_live_one() -> None:
    hand = Hand()
    trajectory = ended(hand, request("r", "single_turn"))
    tried, live = ScoringPosition("tried"), ScoringPosition("live", live=True)
    before = work_of(hand, tried, live)
    after = work_of(hand, tried, replace(live, commits={PARTITION: 9}))
    for waits in (before, after):
        waits.take_trajectory(trajectory, PARTITION, 4)

    assert only(before).what == "scoring 'live'"
    assert waits_of(after) == []


def test_a_retired_scoring_is_not_awaited() -> None:
    hand = Hand()
    trajectory = ended(hand, request("r", "single_turn", scorings=("gone",)))
    waits = work_of(hand, ScoringPosition("gone", retired=True))
    waits.take_trajectory(trajectory, PARTITION, 4)

    assert waits_of(waits) == []


def test_an_end_without_its_trajectory_waits_for_an_agents_worker() -> None:
    hand = Hand()
    ended(hand, request("r", "single_turn"))

    wait = only(work_of(hand))

    assert (wait.reason, wait.what) == (
        "reward",
        "scoring 'default', its trajectory is not written yet",
    )
    assert wait.at == PartitionOwner("t.agents", "t.rollout.events", PARTITION)
    assert waits_of(work_of(hand, commit=len(hand.entries))) == []


def test_a_rollout_that_ended_during_the_read_is_not_open() -> None:
    hand = Hand()
    trajectory = ended(hand, request("r", "single_turn"))
    hand.entries.pop()
    waits = work_of(hand)
    assert only(waits).reason == "decision"

    waits.take_trajectory(trajectory, PARTITION, 0)

    assert only(waits).reason == "reward"


def test_scored_members_wait_for_the_others_of_their_group() -> None:
    # Given a group of three: one scored, one open, one not started
    hand = Hand()
    of = {"group_id": "g", "group_size": 3}
    first = ended(hand, request("a", "single_turn", **of))
    (step,) = hand.start(request("b", **of))
    waits = work_of(hand, ScoringPosition("default", {PARTITION: 1}))
    assert waits.first_requests() == {PARTITION: 1}, "where the open member was asked for"
    waits.take_request(request("b", **of), PARTITION, 1, 40)
    waits.take_request(request("c", **of), PARTITION, 2, 50)
    waits.take_trajectory(first, PARTITION, 0)
    send(waits, step, "t.environments", "t.env.steps")

    # When its scored record is read
    assert waits.oldest_ms == 40
    assert b"g" in waits.scored_keys()
    waits.take_scored(scored(first), 60)

    # Then it waits for the two
    told = {wait.rollout_id: wait for wait in waits_of(waits)}
    assert {name: wait.reason for name, wait in told.items()} == {
        "a": "group",
        "b": "step",
        "c": "admission",
    }
    assert told["a"].what == "1 of 3 scored by 'default', missing b, c"
    assert (told["a"].since_ms, told["a"].at) == (60, None)


def test_an_unrequested_group_member_is_reported_missing() -> None:
    hand = Hand()
    trajectory = ended(hand, request("a", "single_turn", group_id="g", group_size=2))
    waits = work_of(hand, ScoringPosition("default", {PARTITION: 1}), commit=9, group_id="g")

    assert waits.scored_keys() == {b"g"}
    waits.take_scored(scored(trajectory), 60)

    assert only(waits).what == "1 of 2 scored by 'default', missing members that nobody asked for"


def test_a_complete_group_has_no_wait() -> None:
    hand = Hand()
    waits = work_of(hand, group_id="g")
    for name in ("a", "b"):
        trajectory = ended(hand, request(name, "single_turn", group_id="g", group_size=2))
        waits.take_scored(scored(trajectory), 60)

    assert waits_of(waits) == []


def test_the_last_writing_agents_worker_is_remembered() -> None:
    hand = Hand()
    (step,) = hand.start("react")
    body = AttemptStarted("again")
    hand.read(Event.decision("r", 2, "second", body))
    hand.show(step)

    assert work_of(hand).writers == {PARTITION: "second"}


@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_exactly_the_open_rollouts_run_at_any_cut_of_a_journal(seed: int, share: float) -> None:
    entries: list[Entry] = Dice(Random(seed)).live().entries
    cut = entries[: int(len(entries) * share)]
    waits = OpenWork(TOPICS, world_of(DICED))
    waits.begin(0, Watermark(0), 0)

    for entry in cut:
        waits.take_event(entry.event, 0, entry.offset, entry.at_ms)

    journal, _ = fold(cut, world_of(DICED))
    running = {wait.rollout_id for wait in waits_of(waits)}  # some for a call and for a step
    assert running == {
        name
        for name, rollout in journal.open.items()
        if rollout.decision or rollout.attempt.outstanding
    }


def test_ended_rollouts_are_not_kept() -> None:
    hand = Hand()
    for number in range(600):
        ended(hand, replace(request("r", "single_turn"), rollout_id=f"r{number}"))

    waits = work_of(hand, commit=len(hand.entries))

    assert waits_of(waits) == []
    assert len(waits.journals[PARTITION]._ended) < 300
    assert waits.touched == waits._request_offsets == {}
