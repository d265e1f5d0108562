"""Restarts and takeovers of an agents worker: it resumes exactly at the journal's end."""

from dataclasses import replace

import pytest

from rollcall.consumers.agents.watermark import Watermark, read_watermark
from rollcall.consumers.agents.worker import Capacity
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import RequestsSkipped, TopicRecreated
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    Limits,
    Quota,
    RolloutStarted,
    Trajectory,
)
from tests.support.hand_answers import answer, ask, calls, killed, steps
from tests.support.journals import request
from tests.support.programs import ASKS, WALKS
from tests.support.rig import Rig, role_of, source_of


def test_a_restart_resumes_at_the_journals_end(rig: Rig) -> None:
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


def test_a_takeover_repeats_no_answered_command(rig: Rig) -> None:
    ask(rig, agent=WALKS)
    first = rig.agents("a1")
    rig.settle(first)
    rig.commit(first)
    for _ in range(2):
        answer(rig, steps(rig)[-1])
        rig.settle(first)
    killed(first)
    before = steps(rig)

    second = rig.agents("a2")
    rig.settle(second)
    again = steps(rig)[len(before) :]
    rig.commit(second)

    assert again == [before[-1]]  # it may be unsent; earlier ones were answered
    assert rig.committed("t.agents", rig.topics.events) == rig.log.bounds(rig.topics.events)[0][1]


def test_a_takeover_without_a_commit_folds_everything_and_resends_outstanding_commands(
    rig: Rig,
) -> None:
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


def test_only_missing_trajectories_are_written_after_a_reset(rig: Rig) -> None:
    """Also for two that ended under one id, requested in two partitions."""
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


def test_a_reset_does_not_restart_journaled_requests(rig: Rig) -> None:
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


def test_a_takeover_after_a_reset_waits_for_the_registry(rig: Rig) -> None:
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
    role_of(second).outbox.codec = second.dispatcher.codec = Codec(rig.registry)

    role_of(second)._look_back = look_back
    rig.settle(second)
    rig.registry.away = False
    rig.commit(second)
    rig.settle(second)

    assert [t.rollout_id for t in rig.trajectories()] == ["ended"]
    assert [c.rollout_id for c in calls(rig)] == ["ended", "open", "open"]


def test_a_fold_from_the_beginning_keeps_no_ended_rollouts(rig: Rig) -> None:
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


def test_a_takeover_keeps_no_rollouts_that_ended_earlier(rig: Rig) -> None:
    """Later commits never name records below the commit."""
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


def test_a_foreign_commit_is_treated_as_none(rig: Rig) -> None:
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


def test_the_commit_metadata_names_the_oldest_open_rollout(rig: Rig) -> None:
    for name in "abc":
        ask(rig, name)
    loop = rig.agents()
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)
    rig.commit(loop)

    offset, word = rig.log.group("t.agents").committed[rig.topics.events, 0]

    assert (offset, read_watermark(word)) == (5, Watermark(1, 0, requests="0", epoch=0))


def test_one_old_rollout_is_named_and_records_in_between_are_skipped(rig: Rig) -> None:
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
def test_a_recreated_topic_stops_the_worker_before_it_reads(rig: Rig, topic: str) -> None:
    ask(rig)
    first = rig.agents("a1")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    name = getattr(rig.topics, topic)
    rig.log.recreate(name)

    with pytest.raises(TopicRecreated, match=f"{name} was deleted and made anew"):
        rig.settle(rig.agents("a2"))


def test_a_lost_journal_may_be_accepted_and_recreated_topics_are_new(rig: Rig) -> None:
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


def test_a_worker_refuses_to_skip_requests_that_were_never_started(rig: Rig) -> None:
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


def test_moved_partitions_keep_their_rollouts() -> None:
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


def test_deadlines_missed_during_a_takeover_count_from_the_journal(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, limits=Limits(call_timeout_s=5.0))
    rig.settle(first)
    rig.commit(first)
    killed(first)

    rig.clock.pass_by(13.0)
    rig.settle(rig.agents("a2"))

    assert [e.written_by for e in rig.events(CallFailed)] == ["a2"]
    assert calls(rig)[-1].tries == 1


def test_a_commit_during_a_silent_fold_loses_no_open_rollout(rig: Rig) -> None:
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


def test_a_cancel_read_before_the_takeover_is_applied_after_it(rig: Rig) -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.ask(request("r", WALKS), 1)
    rig.settle(first)
    rig.commit(first)
    second = rig.agents("a2")
    source_of(second)  # owns no partition yet; reads the control record
    rig.order("cancel", rollout_id="r")
    role_of(second)._listen()
    killed(first)
    for _ in range(5):
        rig.commit(second)
    assert len(rig.trajectories()) == 1


def test_starts_that_another_worker_reads_back_use_no_capacity() -> None:
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


def test_a_dropped_partition_sends_no_commands(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(loop)
    loop.stop()
    assert [c.rollout_id for c in calls(rig)] == ["r0"]


def test_a_stopping_worker_waits_for_its_trajectories(rig: Rig) -> None:
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


def test_accepted_truncation_keeps_the_remaining_rollouts(rig: Rig) -> None:
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


def test_an_offset_gap_of_a_dead_namesake_does_not_stop_a_worker(rig: Rig) -> None:
    for n in range(3):
        ask(rig, f"r{n}")
    for n in (0, 2):  # the second start was given up by the producer, then the process died
        body = RolloutStarted(request(f"r{n}", ASKS), n, n)
        rig.write(rig.topics.events, f"r{n}", Event.decision(f"r{n}", 1, "a1", body), 0)
    loop = rig.agents("a1")
    rig.log.group("t.agents").committed[rig.topics.events, 0] = 0, "1;0;"
    rig.settle(loop)
    assert len({c.rollout_id for c in calls(rig)}) == 3


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
