"""The agents worker on the in-memory log: requests in, journals folded, commands out."""

from dataclasses import replace

import pytest

from consumers.agents.programs import program_digest, program_of
from consumers.agents.watermark import Watermark, read_watermark
from consumers.agents.wishes import Agent, CallModel, Finish, Task, user
from consumers.agents.worker import Capacity
from consumers.audit.audit import audit
from inference.scripted import ScriptedEngine
from producers.publisher import VALUE_LIMIT_BYTES
from schemas.codec import Codec, LocalRegistry, Registry
from schemas.errors import RequestsSkipped, TopicRecreated, Unavailable
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    Event,
    Limits,
    Quota,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from schemas.messages import Task as WireTask
from tests.support.hand_answers import answer, ask, calls, killed, steps
from tests.support.journals import request, said
from tests.support.programs import ASKS, WALKS, asks, walks
from tests.support.rig import Clock, M, Rig, role_of, source_of


class Dear(Codec):
    """Whatever is decoded costs more than half a turn."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        super().__init__(registry, clock=clock)
        self._passes = clock

    def decode(self, value: bytes | None, expected: type[M]) -> M:
        self._passes.pass_by(0.3)
        return super().decode(value, expected)


# From request to trajectory


def test_a_request_becomes_a_start_a_command_and_in_the_end_a_trajectory(rig: Rig) -> None:
    loop = rig.agents()
    asked = ask(rig, "r7")

    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    start, _, finished = rig.read(rig.topics.events, Event)
    assert (start.rollout_id, start.written_by) == ("r7", "a1")
    assert start.body == RolloutStarted(asked, 0, 0, program_digest(asks))
    assert finished.body == RolloutFinished("finished", "", "", "yes", 1)
    trajectory = rig.trajectories()[0]
    assert (trajectory.rollout_id, trajectory.status) == ("r7", "finished")
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) == 1
    assert rig.committed("t.agents", rig.topics.events) == 3


def test_a_rollout_keeps_the_number_of_its_requests_partition() -> None:
    rig = Rig(partitions=3)
    loop = rig.agents()
    for partition in (2, 0, 1):
        rig.ask(request(f"r{partition}", ASKS), partition)

    rig.settle(loop)
    for call in calls(rig):
        answer(rig, call)
    rig.settle(loop)

    for topic in (rig.topics.events, rig.topics.trajectories):
        for record in rig.log.all(topic):
            assert record.key == f"r{record.partition}".encode()


def test_every_record_names_its_kind_and_its_id_in_its_headers(rig: Rig) -> None:
    ask(rig, run_id="run 5")
    loop = rig.agents()
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    call = rig.log.all(rig.topics.calls("p"))[0]
    assert dict(call.headers or [])["ce_type"] == b"ModelCall"
    assert dict(call.headers or [])["ce_id"] == calls(rig)[0].command_id.hex().encode()
    trajectory = dict(rig.log.all(rig.topics.trajectories)[0].headers or [])
    assert trajectory["ce_type"] == b"rollcall.Trajectory"
    assert trajectory["ce_source"] == b"a1/run 5"


def test_starts_are_chained_by_offset_also_over_holes(rig: Rig) -> None:
    ask(rig, "a")
    rig.log.hole(rig.topics.requests, 0)
    ask(rig, "b")
    rig.settle(rig.agents())

    spans = [(e.body.from_offset, e.body.request_offset) for e in rig.events(RolloutStarted)]
    assert spans == [(0, 0), (1, 2)]


# Refusals


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"agent": "raect"}, "unknown program 'raect'; did you mean 'react'?"),
        ({"agent": "nowhere:program"}, "No module named 'nowhere'"),
        ({"agent": "tests.support.broken_module:p"}, "no such weather"),
        ({"policy_id": "q"}, "unknown policy 'q'"),
    ],
)
def test_a_request_that_cannot_be_run_is_refused_with_a_trajectory(
    rig: Rig, fields: dict[str, str], reason: str
) -> None:
    loop = rig.agents()
    rig.ask(
        RolloutRequest(**{"rollout_id": "r", "task": request().task, "policy_id": "p"} | fields)
    )
    ask(rig, "next")

    rig.settle(loop)

    refused = rig.events(RolloutRefused)[0].body
    assert refused.code == "refused"
    assert reason in refused.reason
    trajectory = rig.trajectories()[0]
    assert (trajectory.rollout_id, trajectory.status) == ("r", "refused")
    assert [call.rollout_id for call in calls(rig)] == ["next"]
    assert rig.log.all(rig.topics.dead_letters) == []


def test_a_rollout_that_is_asked_for_again_is_refused_with_the_place_of_the_first(
    rig: Rig,
) -> None:
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    ask(rig, "other")
    ask(rig, "r", run_id="run", group_id="g")
    rig.settle(agents, models)

    ask(rig, "r", run_id="run", group_id="g", agent="another_program")
    ask(rig, "next")
    rig.settle(agents, models)

    (refused,) = rig.events(RolloutRefused)
    assert (refused.rollout_id, refused.body.code) == ("r", "repeated")
    assert "asked for before, at 0@1 of t.rollout.requests" in refused.body.reason
    assert "submit --again" in refused.body.reason
    assert [c.rollout_id for c in calls(rig)] == ["other", "r", "next"]
    assert [(t.rollout_id, t.attempt, t.status) for t in rig.trajectories()] == [
        ("other", 1, "finished"),
        ("r", 1, "finished"),
        ("r", 0, "refused"),
        ("next", 1, "finished"),
    ]


def test_nobody_takes_the_end_of_a_repeated_request_for_the_rollouts_own(rig: Rig) -> None:
    """It belongs to no run and no group, and has no attempt; all the same it is scored."""
    loops = (
        rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes")), rig.rewards(),
    )  # fmt: skip
    for _ in range(3):
        ask(rig, "r", run_id="run", group_id="g")
        rig.settle(*loops)
    rig.commit(*loops)

    scored = [s.trajectory for s in rig.read(rig.topics.scored, ScoredTrajectory)]
    assert [(t.attempt, t.request and t.request.run_id) for t in scored] == [
        (1, "run"), (0, None), (0, None),
    ]  # fmt: skip
    assert audit(rig, drained=True).ok


def test_a_rollout_that_is_asked_for_again_while_it_is_open_ends_once(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig)
    rig.settle(loop)
    ask(rig)
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    assert len(calls(rig)) == 1
    assert [t.status for t in rig.trajectories()] == ["finished"]
    assert role_of(loop).owned[0].journal.ignored["already_open"] == 1


def test_a_repeated_request_is_known_after_a_takeover_by_the_keys_that_were_read_back(
    rig: Rig,
) -> None:
    first, models = rig.agents("a1"), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for n in range(3):
        ask(rig, f"r{n}")
    rig.settle(first, models)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    for name in ("r1", "new", "r0"):
        ask(rig, name)
    rig.settle(second, models)

    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["r1", "r0"]
    starts = rig.events(RolloutStarted)
    assert [e.rollout_id for e in starts] == ["r0", "r1", "r2", "new"]
    spans = [(e.body.from_offset, e.body.request_offset) for e in rig.read(rig.topics.events, Event)
             if isinstance(e.body, RolloutStarted | RolloutRefused)]  # fmt: skip
    assert spans == [(n, n) for n in range(6)]


def test_requests_wait_until_it_is_known_who_asked_before(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "r0")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    second = rig.agents("a2")
    look_back = role_of(second)._look_back
    role_of(second)._look_back = lambda: None
    for name in ("r1", "r0"):
        ask(rig, name)
    rig.log.append(rig.topics.requests, b"bad", b"no magic", 0)
    rig.settle(second)
    assert len(rig.log.all(rig.topics.events)) == 1

    role_of(second)._look_back = look_back
    ask(rig, "r2")
    rig.settle(second)

    refused = [(e.rollout_id, e.body.code) for e in rig.events(RolloutRefused)]
    assert refused == [("r0", "repeated"), ("bad", "unreadable")]
    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["r0", "r1", "r2"]


def test_a_foreign_producers_keys_need_not_be_ids(rig: Rig) -> None:
    loop = rig.agents()
    for rollout_id in ("a", "b", "a"):
        rig.write(rig.topics.requests, "its own key", request(rollout_id, ASKS), 0)
    rig.settle(loop)

    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["a", "b"]
    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["a"]


def test_a_dead_letter_that_is_sent_again_is_no_repetition(rig: Rig) -> None:
    loop = rig.agents()
    rig.log.append(rig.topics.requests, b"r", b"no magic", 0)
    rig.settle(loop)

    value = rig.codec.encode(rig.topics.requests, request("r", ASKS))
    headers = [("dlq_replayed_from", b"t.dead.letters 0@0")]
    rig.log.append(rig.topics.requests, b"r", value, 0, headers)
    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_id_in_two_partitions_is_one_rollout_and_one_refusal(order: tuple[int, int]) -> None:
    """Where one worker holds both, and has read the first."""
    rig = Rig(partitions=2)
    loop = rig.agents()
    for partition in order:
        rig.ask(request("r", ASKS), partition)
        rig.settle(loop)
        rig.clock.pass_by(0.001)

    (started,), (refused,) = rig.events(RolloutStarted), rig.events(RolloutRefused)
    assert f"at {order[0]}@0" in refused.body.reason
    assert started.body.request_offset == refused.body.request_offset == 0
    assert [c.answer_partition for c in calls(rig)] == [order[0]]


def test_an_id_is_never_refused_in_both_of_two_partitions() -> None:
    """A crash lost the start of the first, and not the refusal of the second."""
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.ask(request("r", ASKS), 0)
    rig.clock.pass_by(0.001)
    rig.ask(request("r", ASKS), 1)
    body = RolloutRefused("repeated", "at 0@0", 0, 0)
    rig.write(rig.topics.events, "r", Event.decision("r", 0, "a0", body), 1)
    rig.log.group("t.agents").committed[rig.topics.requests, 1] = 1, ""
    rig.settle(first)

    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["r"]
    assert len(rig.events(RolloutRefused)) == 1


def test_an_unreadable_request_is_buried_and_refused(rig: Rig) -> None:
    rig.log.append(rig.topics.requests, b"r1", b"no magic", 0)
    rig.log.append(rig.topics.requests, None, b"no magic", 0)
    ask(rig, "next")
    loop = rig.agents()

    rig.settle(loop)
    rig.commit(loop)

    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["r1", "unreadable-0-1"]
    assert [t.code for t in rig.trajectories()] == ["unreadable", "unreadable"]
    assert [t.request for t in rig.trajectories()] == [None, None]
    assert len(rig.log.all(rig.topics.dead_letters)) == 2
    assert [call.rollout_id for call in calls(rig)] == ["next"]
    assert rig.committed("t.agents", rig.topics.requests) == 3


def test_an_unreadable_entry_of_the_journal_is_buried_and_passed_over(rig: Rig) -> None:
    ask(rig)
    loop = rig.agents()
    rig.settle(loop)

    rig.log.append(rig.topics.events, b"r", b"no magic", 0)
    answer(rig, calls(rig)[0])
    rig.settle(loop)
    rig.commit(loop)

    assert rig.trajectories()[0].status == "finished"
    assert rig.committed("t.agents", rig.topics.events) == 4


def test_a_call_for_a_policy_without_a_topic_fails_and_the_program_sees_it(rig: Rig) -> None:
    def elsewhere(task: Task) -> Agent:
        yield CallModel([user("x")], policy_id="absent")

    loop = rig.agents(programs=lambda name: elsewhere)
    ask(rig)

    rig.settle(loop)

    failed = rig.events(CallFailed)[0].body
    assert (failed.code, failed.retriable) == ("unknown_policy", False)
    assert rig.trajectories()[0].code == "raised"


def test_a_command_that_is_too_large_fails_and_the_program_sees_it(rig: Rig) -> None:
    def verbose(task: Task) -> Agent:
        yield CallModel([user("x" * 1_100_000)])

    loop = rig.agents(programs=lambda name: verbose)
    ask(rig)

    rig.settle(loop)

    assert rig.events(CallFailed)[0].body.code == "too_large"
    assert rig.trajectories()[0].code == "raised"


def test_a_trajectory_that_is_too_large_goes_bare(rig: Rig) -> None:
    def long(task: Task) -> Agent:
        messages = []
        for _ in range(3):
            messages.append(user("x" * 350_000))
            answer = yield CallModel(messages)
            messages.append(answer.message)

    loop = rig.agents(programs=lambda name: long)
    ask(rig)
    rig.settle(loop)
    for n in range(3):
        call = calls(rig)[n]
        answer(rig, call, replace(said(call, "yes"), added_ids=b""))
        rig.settle(loop)

    trajectory = rig.trajectories()[0]
    assert (trajectory.status, trajectory.code) == ("finished", "too_large")
    assert (trajectory.sequences, trajectory.steps) == (None, None)
    assert trajectory.model_calls == 3


# Restarts and takeovers


def test_a_restart_goes_on_where_the_journal_ends(rig: Rig) -> None:
    ask(rig, agent=WALKS)
    first = rig.agents("a1")
    rig.settle(first)
    answer(rig, steps(rig)[0])
    rig.settle(first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    rig.settle(second)
    assert len(steps(rig)) == 2
    answer(rig, steps(rig)[1])
    rig.settle(second)

    assert [step.index for step in steps(rig)] == [0, 0, 1]
    assert [e.written_by for e in rig.events(RolloutStarted)] == ["a1"]


def test_without_a_commit_all_is_folded_and_what_is_outstanding_is_asked_again(rig: Rig) -> None:
    ask(rig, "open")
    ask(rig, "ended")
    first = rig.agents("a1")
    rig.settle(first)
    answer(rig, calls(rig)[1])
    rig.settle(first)
    killed(first)
    rig.log.group("t.agents").committed.clear()

    second = rig.agents("a2")
    rig.settle(second)

    assert [call.rollout_id for call in calls(rig)] == ["open", "ended", "open"]
    assert calls(rig)[0] == calls(rig)[2]
    assert [t.rollout_id for t in rig.trajectories()] == ["ended"]
    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["open", "ended"]
    rig.commit(second)
    assert rig.committed("t.agents", rig.topics.requests) == 2


def test_after_a_reset_only_trajectories_that_are_missing_are_written(rig: Rig) -> None:
    """Also of two that ended under one id: it was asked for again in another partition's time."""
    first = rig.agents("a1")
    for n in range(3):
        ask(rig, f"r{n}")
    rig.settle(first)
    for call in calls(rig):
        answer(rig, call)
    rig.settle(first)
    written = rig.trajectories()
    killed(first)
    rig.log.recreate(rig.topics.trajectories)
    rig.write(rig.topics.trajectories, "r1", written[1], 0)
    rig.write(rig.topics.trajectories, "r2", replace(written[2], last_offset=1), 0)
    rig.log.append(rig.topics.trajectories, b"r0", b"no magic", 0)
    rig.log.group("t.agents").committed[rig.topics.events, 0] = 9, "reset by hand"

    second = rig.agents("a2")
    rig.settle(second)
    rig.commit(second)

    after = [
        rig.codec.decode(r.value, Trajectory) for r in rig.log.all(rig.topics.trajectories)[3:]
    ]
    assert after == [written[0], written[2]]
    ends = rig.log.bounds(rig.topics.events)
    assert rig.committed("t.agents", rig.topics.events) == ends[0][1]


def test_a_reset_starts_no_request_again_that_the_journal_counts(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "r0")
    rig.log.append(rig.topics.requests, b"bad", b"no magic", 0)
    ask(rig, "r0")
    rig.settle(first)
    killed(first)
    before = len(rig.log.all(rig.topics.events))
    ask(rig, "late")

    second = rig.agents("a2")
    rig.settle(second)
    rig.commit(second)

    added = rig.read(rig.topics.events, Event)[before:]
    assert [(e.rollout_id, type(e.body)) for e in added] == [("late", RolloutStarted)]
    assert added[0].body.from_offset == added[0].body.request_offset == 3
    assert rig.committed("t.agents", rig.topics.requests) == 4


def test_a_reset_waits_for_the_registry_to_know_what_is_written(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "ended")
    ask(rig, "open")
    rig.settle(first)
    answer(rig, calls(rig)[0])
    rig.settle(first)
    killed(first)
    rig.log.group("t.agents").committed.clear()
    second = rig.agents("a2")
    look_back = role_of(second)._look_back
    role_of(second)._look_back = lambda: None
    rig.settle(second)
    assert len(calls(rig)) == 2
    rig.registry.away = True
    role_of(second).outbox.codec = second.hand_over.codec = Codec(rig.registry)

    role_of(second)._look_back = look_back
    rig.settle(second)
    rig.registry.away = False
    rig.commit(second)
    rig.settle(second)

    assert [t.rollout_id for t in rig.trajectories()] == ["ended"]
    assert [c.rollout_id for c in calls(rig)] == ["ended", "open", "open"]


def test_a_fold_from_the_beginning_keeps_nothing_of_what_has_ended(rig: Rig) -> None:
    first, engine = rig.agents("a1"), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for wave in range(60):
        for n in range(50):
            ask(rig, f"r{wave}-{n}")
        rig.settle(first, engine)
    killed(first)
    rig.log.group("t.agents").committed.clear()

    second, most = rig.agents("a2"), 0
    for _ in range(30):
        second.turn(0.0)
        journal = role_of(second).owned[0].journal
        most = max(most, len(journal._ended) + len(journal._starts))
        rig.clock.pass_by(1.1)

    assert journal.last == 2999
    assert most <= 500
    assert len(rig.trajectories()) == 3000


def test_a_takeover_keeps_nothing_of_what_had_ended_before(rig: Rig) -> None:
    """Whatever lies below the commit, no commit to come has to name it."""
    first, engine = rig.agents("a1"), rig.models(ScriptedEngine("p", lambda call: "yes"))
    ask(rig, "old", WALKS)
    for n in range(600):
        ask(rig, f"r{n}")
        rig.settle(first, engine)
    rig.commit(first)
    killed(first)

    second, most = rig.agents("a2"), 0
    for _ in range(5):
        second.turn(0.0)
        journal = role_of(second).owned[0].journal
        most = max(most, len(journal._ended))
        rig.clock.pass_by(1.1)
    answer(rig, steps(rig)[0])
    rig.settle(second)

    assert list(journal.open) == ["old"]
    assert most <= 500
    assert [step.index for step in steps(rig)] == [0, 0]


def test_a_commit_that_somebody_else_wrote_is_treated_as_none(rig: Rig) -> None:
    ask(rig)
    first = rig.agents("a1")
    rig.settle(first)
    killed(first)
    for topic, offset in ((rig.topics.events, 1), (rig.topics.requests, 1)):
        rig.log.group("t.agents").committed[topic, 0] = offset, "reset by hand"

    rig.settle(rig.agents("a2"))

    assert len(calls(rig)) == 2


def test_a_journals_commit_waits_for_commands_and_trajectories(rig: Rig) -> None:
    ask(rig)
    loop = rig.agents()
    rig.settle(loop)
    rig.commit(loop)
    answer(rig, calls(rig)[0])
    role_of(loop).outbox.trajectories.hold_acks = True

    rig.settle(loop)
    rig.commit(loop)
    assert len(rig.trajectories()) == 1
    assert rig.committed("t.agents", rig.topics.events) == 2
    role_of(loop).outbox.trajectories.hold_acks = False
    rig.commit(loop)

    assert rig.committed("t.agents", rig.topics.events) == 3


def test_the_word_of_a_commit_names_the_oldest_open_rollout(rig: Rig) -> None:
    for name in "abc":
        ask(rig, name)
    loop = rig.agents()
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)
    rig.commit(loop)

    offset, word = rig.log.group("t.agents").committed[rig.topics.events, 0]

    assert (offset, read_watermark(word)) == (5, Watermark(1, 0, requests="0"))


def test_one_old_rollout_is_named_and_what_lies_between_is_not_decoded(rig: Rig) -> None:
    ask(rig, "old", WALKS)
    first = rig.agents("a1")
    rig.settle(first)
    role_of(first).owned[0].journal.few = 10
    for n in range(30):
        ask(rig, f"r{n}")
        rig.settle(first)
        answer(rig, calls(rig)[-1])
        rig.settle(first)
    rig.commit(first)
    offset, word = rig.log.group("t.agents").committed[rig.topics.events, 0]
    begin = read_watermark(word)
    assert begin is not None
    assert (begin.stragglers, begin.last) == ((0,), 30)
    assert offset - 10 <= begin.bulk_low <= offset
    killed(first)

    second, folded = rig.agents("a2"), []
    handle = role_of(second).handle
    role_of(second).handle = lambda batch: handle(folded.append(each) or each for each in batch)
    rig.settle(second)
    answer(rig, steps(rig)[0])
    rig.settle(second)

    assert len(folded) <= 10
    assert [step.index for step in steps(rig)] == [0, 0]
    assert steps(rig)[1].kind == "step"


@pytest.mark.parametrize("topic", ["requests", "events"])
def test_a_topic_made_anew_stops_the_worker_before_it_reads(rig: Rig, topic: str) -> None:
    ask(rig)
    first = rig.agents("a1")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    name = getattr(rig.topics, topic)
    rig.log.recreate(name)

    with pytest.raises(TopicRecreated, match=f"{name} was deleted and made anew"):
        rig.settle(rig.agents("a2"))


def test_a_lost_journal_may_be_accepted_and_topics_made_anew_together_are_new(rig: Rig) -> None:
    ask(rig)
    first = rig.agents("a1")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.log.recreate(rig.topics.events)
    second = rig.agents("a2", accept=True)
    ask(rig, "later")
    rig.settle(second)
    rig.commit(second)
    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["later"]
    killed(second)

    rig.log.recreate(rig.topics.events)
    rig.log.recreate(rig.topics.requests)
    ask(rig, "anew")
    rig.settle(rig.agents("a3"))
    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["anew"]


def test_a_worker_refuses_to_pass_over_requests_that_nobody_started(rig: Rig) -> None:
    for n in range(4):
        ask(rig, f"r{n}")
    first = rig.agents("a1")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    for n in range(4, 8):
        ask(rig, f"r{n}")
    rig.log.group("t.agents").committed[rig.topics.requests, 0] = 6, ""

    with pytest.raises(RequestsSkipped, match="read from offset 6, but the last one started is 3"):
        rig.settle(stopped := rig.agents("a2"))
    killed(stopped)
    rig.log.group("t.agents").committed[rig.topics.requests, 0] = 6, ""
    rig.settle(rig.agents("a3", accept=True))

    assert {"r6", "r7"} <= {call.rollout_id for call in calls(rig)}
    assert {"r4", "r5"}.isdisjoint(call.rollout_id for call in calls(rig))


def test_partitions_that_move_take_their_rollouts_with_them() -> None:
    rig = Rig(partitions=2)
    for partition in (0, 1):
        rig.ask(request(f"r{partition}", WALKS), partition)
    first = rig.agents("a1")
    rig.settle(first)

    second = rig.agents("a2")
    rig.settle(first, second)
    for step in steps(rig):
        answer(rig, step)
    rig.settle(first, second)

    assert (role_of(first).live(0), role_of(second).live(1)) == (1, 1)
    assert len(steps(rig)) == 4


# Backpressure and quotas


def test_a_full_worker_pauses_requests_and_never_the_journal(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=8))
    for n in range(600):
        ask(rig, f"r{n}")

    rig.settle(loop)
    events, requests = (loop.partitions[t, 0] for t in (rig.topics.events, rig.topics.requests))
    assert requests.paused
    assert not events.paused
    assert len(calls(rig)) == 500  # one batch had been polled
    for call in calls(rig):
        answer(rig, call)
    rig.settle(loop)

    assert not events.paused
    assert len(calls(rig)) == 600


def test_a_paused_run_takes_no_requests_until_it_is_resumed(rig: Rig) -> None:
    loop = rig.agents()
    rig.order("pause")
    rig.settle(loop)
    ask(rig)
    rig.commit(loop)
    rig.commit(loop)
    assert rig.log.all(rig.topics.events) == []

    rig.order("resume")
    rig.commit(loop)
    rig.commit(loop)
    rig.settle(loop)

    assert len(calls(rig)) == 1


def test_a_worker_that_starts_while_agents_are_paused_starts_no_request(rig: Rig) -> None:
    """Whatever was delivered before the partition was paused waits, in its order."""
    rig.order("pause")
    ask(rig, "r0")
    rig.log.append(rig.topics.requests, b"bad", b"rubbish", 0)
    ask(rig, "r1")
    loop = rig.agents()
    rig.settle(loop)
    rig.commit(loop)
    assert rig.log.all(rig.topics.events) == []
    assert rig.committed("t.agents", rig.topics.requests) in (None, 0)

    rig.order("resume")
    rig.commit(loop)
    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1"]
    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["bad"]
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) == 3


def test_what_comes_when_a_pause_ends_starts_behind_what_came_before(rig: Rig) -> None:
    # Given requests that were delivered before the pause was known, and one that came after
    rig.order("pause")
    ask(rig, "r0")
    ask(rig, "r1")
    loop = rig.agents()
    rig.settle(loop)
    ask(rig, "r2")
    rig.settle(loop)

    rig.order("resume")
    rig.commit(loop)
    rig.settle(loop)

    # Then none is skipped, as every start says that all before it were seen
    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "r2"]


def test_requests_keep_their_order_where_a_journal_is_folded_between_two_of_their_slices(
    rig: Rig,
) -> None:
    # Given a journal that was reset, and records that cost so much that turns end between them
    old = rig.agents("a1")
    for n in range(3):
        ask(rig, f"old{n}")
    rig.settle(old)
    rig.commit(old)
    source_of(old).kill()
    del rig.log.group("t.agents").committed[rig.topics.events, 0]
    for n in range(12):
        ask(rig, f"new{n}")
    rig.codec = Dear(rig.registry, rig.clock)

    loop = rig.agents("a2")
    rig.settle(loop)

    asked = {call.rollout_id for call in calls(rig)}
    assert asked == {*(f"old{n}" for n in range(3)), *(f"new{n}" for n in range(12))}


def test_a_paused_partition_that_leaves_takes_its_requests_along() -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.order("pause")
    rig.commit(first)
    for partition in (0, 1):
        rig.ask(request(f"r{partition}", ASKS), partition)
    rig.settle(first)
    second = rig.agents("a2")
    rig.settle(first, second)

    rig.order("resume")
    rig.commit(first, second)
    rig.settle(first, second)

    starts = rig.events(RolloutStarted)
    assert sorted(e.rollout_id for e in starts) == ["r0", "r1"]


class Mute(LocalRegistry):
    """Says nothing of one topic."""

    topic = ""

    def writer_id(self, topic: str, schema: str) -> int:
        if topic == self.topic:
            msg = "the registry does not answer"
            raise Unavailable(msg)
        return super().writer_id(topic, schema)


@pytest.mark.parametrize(("policy", "code"), [("p", "too_large"), ("none", "refused")])
def test_a_request_too_large_for_the_journal_leaves_no_gap_where_it_could_not_be_written_at_once(
    rig: Rig, policy: str, code: str
) -> None:
    # Given a request whose start is a little larger than a record may be, and one behind it
    registry = Mute()
    registry.topic = rig.topics.events
    rig.codec = Codec(registry, clock=rig.clock)
    large = replace(request("large", ASKS), policy_id=policy)
    room = VALUE_LIMIT_BYTES - len(rig.codec.encode(rig.topics.requests, large)) - 8
    rig.ask(replace(large, task=replace(large.task, prompt=large.task.prompt + "x" * room)))
    ask(rig, "r")
    loop = rig.agents()
    rig.settle(loop)
    assert rig.log.all(rig.topics.events) == []

    # When what was to be written can be encoded again, and no broker has answered yet
    registry.topic = ""
    role_of(loop).outbox.commands.hold_acks = True
    rig.commit(loop)
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) in (None, 0)
    role_of(loop).outbox.commands.hold_acks = False
    rig.settle(loop)
    rig.commit(loop)

    # Then the one is refused, and the other runs
    refused = rig.events(RolloutRefused)
    assert [(e.rollout_id, e.body.code) for e in refused] == [("large", code)]
    assert [c.rollout_id for c in calls(rig)] == ["r"]
    assert rig.committed("t.agents", rig.topics.requests) == 2


def test_a_quota_delays_the_first_command_and_not_the_start(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=2)))
    for n in range(4):
        ask(rig, f"r{n}", user="ann")
    ask(rig, "other", user="bob")

    rig.settle(loop)
    assert len(rig.events(RolloutStarted)) == 5
    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "other"]
    rig.clock.pass_by(30.0)
    answer(rig, calls(rig)[1])
    rig.settle(loop)

    late = calls(rig)[3]
    assert (late.rollout_id, len(calls(rig))) == ("r2", 4)
    assert late.not_after_ms == int((rig.clock.now + 120.0) * 1000)


def test_a_quota_stops_the_clock_of_the_rollouts_it_holds(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    limits = Limits(rollout_timeout_s=3600.0, call_timeout_s=1000.0)
    for n in range(12):
        ask(rig, f"r{n}", user="ann", limits=limits)
    rig.settle(loop)

    for n in range(12):
        for _ in range(4):
            rig.clock.pass_by(100.0)
            rig.settle(loop)
        answer(rig, calls(rig)[n])
        rig.settle(loop)

    assert [t.status for t in rig.trajectories()] == ["finished"] * 12


def test_a_rollout_that_was_held_still_ends_when_its_own_time_is_over(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    for n in range(2):
        ask(rig, f"r{n}", WALKS, user="ann", limits=Limits(rollout_timeout_s=100.0))
    rig.settle(loop)
    rig.clock.pass_by(101.0)
    rig.settle(loop)
    assert [e.rollout_id for e in rig.events(DeadlinePassed)] == ["r0"]

    rig.clock.pass_by(99.0)
    rig.settle(loop)
    assert len(rig.trajectories()) == 1
    rig.clock.pass_by(2.0)
    rig.settle(loop)

    assert [e.rollout_id for e in rig.events(DeadlinePassed)] == ["r0", "r1"]


def test_an_heir_counts_the_time_of_a_rollout_that_was_held_from_its_first_answer(
    rig: Rig,
) -> None:
    """When it was let go is written nowhere; its first answer is, and came after that."""
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    for n in range(2):
        ask(rig, f"r{n}", WALKS, user="ann", limits=Limits(rollout_timeout_s=100.0))
    rig.settle(first)
    rig.clock.pass_by(101.0)
    rig.settle(first)
    answer(rig, next(step for step in steps(rig) if step.rollout_id == "r1"))
    rig.settle(first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    rig.clock.pass_by(95.0)
    rig.settle(second)
    assert len(rig.trajectories()) == 1
    rig.clock.pass_by(5.0)
    rig.settle(second)

    assert [t.status for t in rig.trajectories()] == ["timed_out", "timed_out"]


def test_what_a_quota_holds_back_leaves_room_for_others(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=8, quota=Quota("", running=2)))
    for n in range(600):
        ask(rig, f"r{n}", user="ann")
    ask(rig, "other", user="bob")

    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "other"]


def test_what_quotas_hold_back_is_bounded_too(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1), max_held=100))
    for n in range(600):
        ask(rig, f"r{n}", user="ann")

    rig.settle(loop)

    assert len(rig.events(RolloutStarted)) == 500  # one batch had been polled


@pytest.mark.parametrize("most", [0, 2])
def test_a_rollout_held_by_a_quota_starts_after_a_takeover(rig: Rig, most: int) -> None:
    """Also where the heir has no quotas and cannot know by itself what was held back."""
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2", capacity=Capacity(quota=Quota("", running=most)))
    rig.settle(second)

    assert "r1" in [c.rollout_id for c in calls(rig)]


def test_an_heir_that_dies_before_its_commands_are_out_leaves_word_of_them(rig: Rig) -> None:
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", WALKS, user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    second = rig.agents("a2")
    role_of(second).outbox.commands.send = lambda *args, **named: None
    rig.settle(second)
    answer(rig, steps(rig)[0])
    rig.settle(second)
    rig.commit(second)
    assert calls(rig) == []
    killed(second)

    rig.settle(rig.agents("a3"))

    assert [c.rollout_id for c in calls(rig)] == ["r1"]


def test_a_cancelled_rollout_gives_its_place_to_the_next(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    for n in range(3):
        ask(rig, f"r{n}", user="ann")
    rig.settle(loop)

    for name in ("r1", "r0"):
        rig.order("cancel", rollout_id=name)
        rig.commit(loop)
        rig.settle(loop)

    assert [c.rollout_id for c in calls(rig) if c.kind == "sample"] == ["r0", "r2"]


# Words from control


def test_a_word_cancels_one_rollout(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    ask(rig, "b")
    rig.settle(loop)

    rig.order("cancel", rollout_id="a", reason="enough")
    rig.commit(loop)
    rig.settle(loop)

    cancelled = rig.events(RolloutCancelled)[0]
    assert (cancelled.rollout_id, cancelled.body.reason) == ("a", "enough")
    assert [(t.rollout_id, t.status) for t in rig.trajectories()] == [("a", "cancelled")]
    assert [c.kind for c in calls(rig) if c.rollout_id == "a"] == ["sample", "abort"]


def test_a_word_looks_only_at_the_rollouts_that_it_names(rig: Rig) -> None:
    looked: list[str] = []

    loop = rig.agents()
    control = role_of(loop).control
    cancels = control.cancels
    control.cancels = lambda asked: looked.append(asked.rollout_id) or cancels(asked)
    for n in range(20):
        ask(rig, f"r{n}", group_id=f"g{n % 10}", group_size=2)
    rig.settle(loop)
    looked.clear()

    rig.order("cancel", rollout_id="r3")
    rig.order("cancel", group_id="g4")
    rig.order("cancel", group_id="nobody")
    rig.order("cancel", rollout_id="r14")
    rig.order("cancel")
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert sorted(looked) == ["r14", "r3", "r4"]
    assert {e.rollout_id for e in rig.events(RolloutCancelled)} == {"r14", "r3", "r4"}


def test_a_reason_of_a_megabyte_cancels_all_the_same(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.settle(loop)

    rig.order("cancel", rollout_id="a", reason="x" * 999_900)
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert rig.trajectories()[0].status == "cancelled"


def test_a_word_cancels_a_whole_group_also_what_comes_later(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a", group_id="g")
    ask(rig, "b", group_id="other")
    rig.settle(loop)

    rig.order("cancel", group_id="g")
    rig.commit(loop)
    ask(rig, "late", group_id="g")
    rig.settle(loop)

    assert {t.rollout_id for t in rig.trajectories()} == {"a", "late"}


def test_an_unreadable_word_is_buried_and_the_next_is_heard(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.settle(loop)
    rig.log.append(rig.topics.control, None, b"no magic", 0)

    rig.order("cancel", rollout_id="a")
    rig.commit(loop)
    rig.settle(loop)

    assert len(rig.log.all(rig.topics.dead_letters)) == 1
    assert rig.trajectories()[0].status == "cancelled"


# Deadlines


def test_a_call_without_an_answer_is_failed_and_asked_again(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, limits=Limits(call_timeout_s=5.0, max_tries=2))
    rig.settle(loop)

    rig.clock.pass_by(11.5)
    rig.settle(loop)
    assert rig.events(CallFailed) == []
    rig.clock.pass_by(1.5)
    rig.settle(loop)
    assert [c.tries for c in calls(rig)] == [0, 1]
    rig.clock.pass_by(13.0)
    rig.settle(loop)

    assert [e.body.code for e in rig.events(CallFailed)] == ["deadline", "deadline"]
    assert rig.trajectories()[0].code == "raised"


def test_a_rollout_without_an_end_is_ended(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, agent=WALKS, limits=Limits(rollout_timeout_s=100.0, step_timeout_s=1000.0))
    rig.settle(loop)

    rig.clock.pass_by(101.0)
    rig.settle(loop)

    assert len(rig.events(DeadlinePassed)) == 1
    assert rig.trajectories()[0].status == "timed_out"


def test_deadlines_that_passed_during_a_takeover_count_from_the_journal(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, limits=Limits(call_timeout_s=5.0))
    rig.settle(first)
    rig.commit(first)
    killed(first)

    rig.clock.pass_by(13.0)
    rig.settle(rig.agents("a2"))

    assert [e.written_by for e in rig.events(CallFailed)] == ["a2"]
    assert calls(rig)[-1].tries == 1


def test_a_broker_whose_clock_is_ahead_ends_nobody_elses_waits() -> None:
    """Neither in its own partitions, where it stamps one record or all, nor in others."""
    rig = Rig(partitions=2)
    loop = rig.agents()
    for n in range(6):
        rig.ask(request(f"r{n}", ASKS), n % 2)
    rig.settle(loop)
    now = rig.log.wall
    rig.log.wall = lambda: now() + 600.0
    rig.ask(request("stamped", ASKS), 1)
    rig.settle(loop)
    rig.log.wall = now

    for _ in range(10):
        rig.clock.pass_by(0.6)
        rig.settle(loop)

    assert rig.events(CallFailed) == []


def test_an_agents_worker_whose_clock_is_ahead_waits_as_long_as_it_should(rig: Rig) -> None:
    rig.wall = lambda: rig.clock() + 130.0
    loop = rig.agents()
    ask(rig, limits=Limits(call_timeout_s=120.0))
    rig.settle(loop)

    rig.clock.pass_by(290.0)
    rig.settle(loop)
    assert rig.events(CallFailed) == []
    rig.clock.pass_by(11.0)
    rig.settle(loop)

    assert [e.body.code for e in rig.events(CallFailed)] == ["deadline"]


# Programs that change


def test_a_changed_program_begins_a_new_attempt_when_its_word_is_read(rig: Rig) -> None:
    first = rig.agents("a1", programs=lambda name: asks)
    ask(rig)
    rig.settle(first)
    rig.commit(first)
    killed(first)

    def changed(task: Task) -> Agent:
        answer = yield CallModel([user("something else")])
        yield Finish(answer.text)

    second = rig.agents("a2", programs=lambda name: changed)
    answer(rig, calls(rig)[0])
    rig.settle(second)
    assert rig.events(AttemptStarted)[0].attempt == 2
    answer(rig, calls(rig)[-1])
    rig.settle(second)

    assert (rig.trajectories()[0].attempt, rig.trajectories()[0].status) == (2, "finished")


def test_a_program_is_named_by_the_digest_of_its_source() -> None:
    assert program_digest(asks) == program_digest(program_of(ASKS))
    assert program_digest(asks) != program_digest(walks)
    assert program_digest(len) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "digest"), [("react", "d51220bea3416a64"), ("single_turn", "cdcf53bf1f47d4ab")]
)
def test_a_shipped_program_is_still_the_one_that_released_journals_name(
    name: str, digest: str
) -> None:
    assert program_digest(program_of(name)) == digest


def test_a_worker_and_an_engine_take_many_rollouts_to_their_ends(rig: Rig) -> None:
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for n in range(50):
        ask(rig, f"r{n}")

    rig.settle(agents, models)

    assert [t.status for t in rig.trajectories()] == ["finished"] * 50


def test_a_commit_during_a_silent_fold_forgets_nothing(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "a")
    rig.settle(first)
    for _ in range(3):
        answer(rig, calls(rig)[0], CallFailed("x", "", True))
    rig.settle(first)
    answer(rig, calls(rig)[-1])
    rig.settle(first)
    ask(rig, "late", agent=WALKS)
    for _ in range(600):
        answer(rig, calls(rig)[0])
    rig.settle(first)
    ask(rig, "last", agent=WALKS)
    rig.settle(first)
    rig.log.group("t.agents").committed[rig.topics.events, 0] = (
        rig.log.topics[rig.topics.events][0].end,
        "1;0;",
    )
    rig.log.group("t.agents").committed[rig.topics.requests, 0] = (3, "")
    killed(first)
    second = rig.agents("a2")
    rig.clock.pass_by(2.0)
    second.turn(0.0)  # folds 500 of the events, commits
    killed(second)
    third = rig.agents("a3")
    rig.settle(third)
    assert set(role_of(third).owned[0].journal.open) == {"late", "last"}


def test_trajectories_sent_during_a_full_fold_hold_the_commit(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig)
    rig.settle(first)
    answer(rig, calls(rig)[0])
    role_of(first).outbox.trajectories.send = lambda *a, **k: None  # never leaves the buffer
    rig.settle(first)
    killed(first)
    assert rig.trajectories() == []
    second = rig.agents("a2")
    role_of(second).outbox.trajectories.hold_acks = True
    for _ in range(4):
        rig.commit(second)
    offset, word = rig.log.group("t.agents").committed[rig.topics.events, 0]
    found = read_watermark(word)
    assert found is None or found.low == 0, (offset, word)


def test_a_cancel_read_before_the_takeover_is_obeyed_after_it(rig: Rig) -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.ask(request("r", WALKS), 1)
    rig.settle(first)
    rig.commit(first)
    second = rig.agents("a2")
    source_of(second)  # owns nothing yet; hears the word
    rig.order("cancel", rollout_id="r")
    role_of(second)._listen()
    killed(first)
    for _ in range(5):
        rig.commit(second)
    assert len(rig.trajectories()) == 1


def test_a_request_too_large_for_the_journal_is_refused(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    task = WireTask("maze", prompt="x" * 999_860)
    rig.ask(RolloutRequest("big", task, ASKS, policy_id="p"))
    ask(rig, "next")
    rig.settle(loop)
    assert [t.code for t in rig.trajectories()] == ["too_large"]
    assert [c.rollout_id for c in calls(rig)] == ["a", "next"]


def test_a_large_request_for_an_unknown_program_is_refused(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.ask(RolloutRequest("big", WireTask("maze", prompt="x" * 999_860), "nobody", policy_id="p"))
    ask(rig, "next")
    rig.settle(loop)
    assert [t.status for t in rig.trajectories()] == ["refused"]
    assert [c.rollout_id for c in calls(rig)] == ["a", "next"]


def test_starts_that_somebody_else_reads_back_do_not_fill_a_worker() -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1", capacity=Capacity(max_live=4))
    for n in range(4):
        rig.ask(request(f"r{n}", ASKS), 1)
    first.turn(0.0)
    second = rig.agents("a2")
    rig.settle(first, second)
    rig.ask(request("next", ASKS), 0)
    for _ in range(5):
        rig.commit(first, second)
    assert "next" in [c.rollout_id for c in calls(rig)]


def test_a_partition_may_leave_while_rollouts_wait_for_a_quota(rig: Rig) -> None:
    def fails(task: Task) -> Agent:
        raise ValueError
        yield

    loop = rig.agents(
        capacity=Capacity(quota=Quota("", running=1)),
        programs=lambda name: fails if name == "fails" else program_of(name),
    )
    ask(rig, "r0", user="ann")
    ask(rig, "r1", agent="fails", user="ann")
    rig.settle(loop)

    loop.stop()

    assert [c.rollout_id for c in calls(rig)] == ["r0"]
    assert loop.partitions == {}


def test_a_dropped_partition_sends_no_commands(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(loop)
    loop.stop()
    assert [c.rollout_id for c in calls(rig)] == ["r0"]


def test_a_worker_that_stops_waits_for_its_trajectories(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig)
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    loop.turn(0.0)
    role_of(loop).outbox.trajectories.poll = lambda: None  # acks come with the flush only
    loop.turn(0.0)
    loop.turn(0.0)
    flushed = []
    role_of(loop).outbox.trajectories.flush = lambda s: flushed.append(s) or 0
    loop.stop()
    assert flushed


def test_accepted_truncation_keeps_the_rollouts_that_are_still_there(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "r0")
    rig.settle(first)
    answer(rig, calls(rig)[0])
    rig.settle(first)
    for n in (1, 2, 3):
        ask(rig, f"r{n}")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.log.delete_before(rig.topics.events, 0, 4)  # r2 and r3 are still there
    second = rig.agents("a2", accept=True)
    rig.settle(second)
    assert list(role_of(second).owned[0].journal.open) == ["r2", "r3"]


def test_a_gap_of_a_dead_namesake_does_not_stop_a_worker(rig: Rig) -> None:
    for n in range(3):
        ask(rig, f"r{n}")
    for n in (0, 2):  # the second start was given up by the producer, then the process died
        body = RolloutStarted(request(f"r{n}", ASKS), n, n)
        rig.write(rig.topics.events, f"r{n}", Event.decision(f"r{n}", 1, "a1", body), 0)
    loop = rig.agents("a1")
    rig.log.group("t.agents").committed[rig.topics.events, 0] = 0, "1;0;"
    rig.settle(loop)
    assert len({c.rollout_id for c in calls(rig)}) == 3


def test_a_registry_away_at_the_first_command_is_waited_for(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a", agent=WALKS)
    rig.settle(loop)
    rig.registry.away = True
    ask(rig, "b")
    for _ in range(3):
        rig.commit(loop)
    rig.registry.away = False
    for _ in range(3):
        rig.commit(loop)
    assert len(calls(rig)) == 1


def test_a_buried_entry_is_not_buried_again_after_a_restart(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig)
    rig.settle(first)
    rig.log.append(rig.topics.events, b"r", b"no magic", 0)
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.settle(rig.agents("a2"))
    assert len(rig.log.all(rig.topics.dead_letters)) == 1


def test_a_rollout_held_by_a_quota_is_not_expired_by_a_takeover(rig: Rig) -> None:
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.clock.pass_by(500.0)
    second = rig.agents("a2", capacity=Capacity(quota=Quota("", running=2)))
    rig.settle(second)
    late = [c for c in calls(rig) if c.rollout_id == "r1" and c.tries == 0]
    assert late[-1].not_after_ms > rig.clock.now * 1000


def test_a_worker_with_room_for_one_takes_the_next_after_it(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=1))
    ask(rig, "a")
    rig.settle(loop)
    ask(rig, "b")
    answer(rig, calls(rig)[0])
    for _ in range(4):
        rig.commit(loop)
    assert [c.rollout_id for c in calls(rig)] == ["a", "b"]
