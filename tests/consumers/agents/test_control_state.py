"""`control` as a compacted table: pauses and cancels that outlast retention, bounded, retired."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rollcall.consumers.agents import control_state
from rollcall.consumers.agents.control_listener import KEPT_MS, RETIRE_EVERY_S
from rollcall.consumers.agents.control_state import ControlState
from rollcall.consumers.history.waiting.waiting import read_control
from rollcall.consumers.log.memory_log import MemoryReader
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.control import control_key, send_control, send_quota
from rollcall.schemas.messages import Control, Quota, RolloutStarted
from tests.support.hand_answers import ask, calls
from tests.support.journals import request
from tests.support.rig import Rig, role_of
from tests.support.tiers import examples

NAMES = st.sampled_from(["", "a", "b"])
WORDS = st.builds(
    Control,
    kind=st.sampled_from(["cancel", "pause", "resume", "drain", "adopting", "unknown"]),
    rollout_id=NAMES,
    group_id=NAMES,
    worker=NAMES,
    reason=st.sampled_from(["", "why"]),
    run_id=NAMES,
)
KEYS = st.sampled_from([b"pause", b"cancel/rollout/a", b"pause/run/a", b"x", b"\xff", None])
WRITINGS = st.lists(st.tuples(st.one_of(WORDS, st.sampled_from([None, b"junk"])), KEYS))


def meaning(state: ControlState) -> tuple[Any, ...]:
    """The effect of a state on the workers."""
    requests = [request(r, "p:p", group_id=g, group_size=2) for r in "abc" for g in "abc"]
    return sorted(state.paused_runs), [state.cancels(each) for each in requests]


@settings(max_examples=examples(60), deadline=None)
@given(WRITINGS, st.booleans())
def test_compaction_leaves_the_control_state_unchanged(
    writings: list[tuple[Any, bytes | None]], tombstones: bool
) -> None:
    rig = Rig()
    topic = rig.topics.control
    for word, key in writings:
        value = rig.codec.encode(topic, word) if isinstance(word, Control) else word
        own = control_key(word).encode() if isinstance(word, Control) else b"x"
        rig.log.append(topic, key or own, value)
    before = meaning(read_control(rig))  # type: ignore[arg-type]

    rig.log.compact(topic, tombstones=tombstones)

    assert meaning(read_control(rig)) == before  # type: ignore[arg-type]


@given(st.lists(WORDS))
def test_the_last_control_record_on_a_subject_counts(words: list[Control]) -> None:
    state = ControlState()
    for word in words:
        state.apply_order(word, control_key(word).encode())

    for run_id in ("", "a", "b"):
        said = [w.kind for w in words if w.kind in ("pause", "resume") and w.run_id == run_id]
        assert (run_id in state.paused_runs) == (said[-1:] == ["pause"])
    asked = request("a", "p:p", group_id="b", group_size=2)
    cancels = [w for w in words if w.kind == "cancel"]
    named = any(w.rollout_id == "a" or (not w.rollout_id and w.group_id == "b") for w in cancels)
    assert (state.cancels(asked) is not None) == named


def test_a_pause_and_a_cancel_survive_retention_and_a_restart(rig: Rig) -> None:
    rig.order("pause")
    rig.order("cancel", rollout_id="late")
    for rollout_id in ("late", "other"):
        ask(rig, rollout_id)
    first = rig.agents()
    rig.settle(first)
    first.source.kill()
    rig.clock.pass_by(400 * 86_400)
    rig.log.delete_before(rig.topics.control, 0, rig.log.bounds(rig.topics.control)[0][1])
    rig.log.compact(rig.topics.control, tombstones=True)

    heir = rig.agents("a2")
    rig.clock.pass_by(RETIRE_EVERY_S + 1)
    rig.settle(heir)
    assert rig.events(RolloutStarted) == []

    rig.order("resume")
    rig.clock.pass_by(1)
    rig.settle(heir)
    assert [(t.rollout_id, t.status) for t in rig.trajectories()] == [("late", "cancelled")]


def test_no_rollout_starts_before_all_of_control_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2500):
        rig.order("cancel", rollout_id=f"c{number}")
    rig.order("pause")
    rig.order("cancel", rollout_id="r")
    ask(rig, "r")
    poll = MemoryReader.poll

    def far_away(reader: MemoryReader, timeout_s: float, most: int = 500) -> list[Any]:
        rig.clock.pass_by(5.0)
        return poll(reader, timeout_s, 10 if reader.topics == [rig.topics.control] else most)

    monkeypatch.setattr(MemoryReader, "poll", far_away)
    with capture_logs() as logs:
        loop = rig.agents()
        for _ in range(200):
            loop.turn(0.0)

    state = role_of(loop).control
    assert state.known
    assert state.paused
    assert len(state.rollouts) == 2501
    assert rig.events(RolloutStarted) == []
    said = [entry for entry in logs if entry["event"] == "control_not_read_yet"]
    assert {entry["topic"] for entry in said} == {rig.topics.control}


def test_a_cancelled_rollouts_commands_wait_until_control_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(rig, "r")
    first = rig.agents()
    rig.settle(first)
    sent = len(calls(rig))
    first.source.kill()
    rig.order("cancel", rollout_id="r")
    read_on = MemoryReader.poll

    def unreachable(reader: MemoryReader, timeout_s: float, most: int = 500) -> list[Any]:
        mute = reader.topics == [rig.topics.control]
        return [] if mute else read_on(reader, timeout_s, most)

    monkeypatch.setattr(MemoryReader, "poll", unreachable)
    heir = rig.agents("a2")
    rig.settle(heir, turns=20)
    rig.clock.pass_by(60)
    rig.settle(heir, turns=20)
    assert len(calls(rig)) == sent

    monkeypatch.undo()
    rig.clock.pass_by(60)
    rig.settle(heir)
    assert [t.status for t in rig.trajectories()] == ["cancelled"]


def test_control_records_are_bounded_in_number_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_state, "MOST_RECORDS", 50)
    state = ControlState()
    state.apply_order(Control("pause", run_id="run"))
    with capture_logs() as logs:
        for number in range(200):
            state.apply_order(Control("cancel", rollout_id=f"r{number}", reason="x" * 900_000))
            state.apply_order(Control("cancel", rollout_id="y" * 900_000))

    assert state.paused_runs == {"run"}
    assert list(state.rollouts) == [f"r{number}" for number in range(151, 200)]
    assert max(map(len, state.rollouts.values())) == control_state.REASON_CHARS
    assert [entry["event"] for entry in logs] == ["control_records_over_limit"]


def test_a_cancel_is_retired_with_the_end_of_its_rollout(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "r")
    rig.settle(loop)
    rig.order("cancel", rollout_id="r")
    rig.clock.pass_by(1)
    rig.settle(loop)
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert [t.status for t in rig.trajectories()] == ["cancelled"]
    assert role_of(loop).control.records == {}
    rig.log.compact(rig.topics.control, tombstones=True)
    assert rig.log.all(rig.topics.control) == []


def test_old_control_records_are_retired_after_their_requests_are_taken(rig: Rig) -> None:
    rig.order("cancel", rollout_id="ended long ago")
    rig.order("drain", worker="w1")
    rig.order("pause", run_id="still paused")
    ask(rig, "r")
    rig.clock.pass_by(KEPT_MS / 1000 + 1)

    loop = rig.agents()
    loop.turn()
    assert len(role_of(loop).control.records) == 3, "the request has not been taken"
    rig.settle(loop)
    rig.commit(loop)
    rig.clock.pass_by(RETIRE_EVERY_S)
    rig.settle(loop)
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert list(role_of(loop).control.records) == [b"pause/run/still paused"]


def test_old_control_records_without_keys_are_rewritten_with_keys(rig: Rig) -> None:
    topic = rig.topics.control
    rig.log.append(topic, None, rig.codec.encode(topic, Control("pause", reason="old")))

    loop = rig.agents()
    rig.settle(loop)
    rig.log.compact(topic)

    assert read_control(rig).paused  # type: ignore[arg-type]


def test_a_paused_run_starts_no_rollout_and_other_runs_do(rig: Rig) -> None:
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "a"))
    rig.order("pause", run_id="one")
    ask(rig, "held", run_id="one")
    ask(rig, "free", run_id="two")
    rig.settle(agents, models)

    assert {t.rollout_id for t in rig.trajectories()} == {"free"}
    assert {event.rollout_id for event in rig.events(RolloutStarted)} == {"held", "free"}
    assert {call.rollout_id for call in calls(rig)} == {"free"}

    agents.source.kill()
    heir = rig.agents("a2")
    rig.settle(heir, models)
    assert {t.rollout_id for t in rig.trajectories()} == {"free"}

    rig.order("resume", run_id="one")
    rig.clock.pass_by(1)
    rig.settle(heir, models)
    assert {t.rollout_id for t in rig.trajectories()} == {"free", "held"}


def test_a_paused_run_does_not_block_others_under_the_same_quota(rig: Rig) -> None:

    send_quota(rig.pen, rig.codec, rig.topics, "ann", Quota("ann", running=1))
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "a"))
    ask(rig, "first", run_id="two", user="ann")
    ask(rig, "held", run_id="one", user="ann")
    ask(rig, "second", run_id="two", user="ann")
    rig.settle(agents)
    send_control(rig.pen, rig.codec, rig.topics, Control("pause", run_id="one"))
    rig.clock.pass_by(1)
    rig.settle(agents)
    rig.settle(agents, models)

    assert {t.rollout_id for t in rig.trajectories()} == {"first", "second"}
