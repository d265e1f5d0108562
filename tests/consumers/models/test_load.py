"""A full server refuses calls, and delays each refusal to avoid a retry storm."""

from dataclasses import replace

import pytest

from rollcall.consumers.models.load import FIRST_HOLD_S, LONGEST_HOLD_S, WINDOW_S, Load, hold_s
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import CallFailed, Event, ModelAnswered, ModelCall
from tests.support.policies import call
from tests.support.rig import Clock, Rig, role_of


def loaded(answers: int, seconds: float, in_hand: int = 20) -> tuple[Load, Clock]:
    """A load of 10 places with this many answers in this time, while more calls waited."""
    clock = Clock()
    load = Load(clock, 10)
    load.speed.look(in_hand)
    for _ in range(answers):
        load.speed.note_answer()
    clock.pass_by(seconds)
    return load, clock


@pytest.mark.parametrize(
    ("answers", "seconds", "in_hand", "left_s", "full"),
    [
        (20, 10.0, 29, 9.0, True),  # 20 before it begin in 10 s
        (20, 10.0, 29, 11.0, False),
        (20, 10.0, 9, 0.1, False),  # there is a free place
        (20, 10.0, 10, 0.1, False),  # none waits
        (3, 10.0, 500, 0.1, False),  # too few to say how fast it is
        (20, 0.5, 500, 0.1, False),  # too short
        (20, 10.0, 29, -5.0, True),  # it was full while the call lay in the log
    ],
)
def test_a_server_is_full_if_a_call_would_begin_too_late(
    answers: int, seconds: float, in_hand: int, left_s: float, full: bool
) -> None:
    load, _ = loaded(answers, seconds)
    now_ms = 1_000_000

    refused = load.refusal(
        replace(call(), not_after_ms=now_ms + int(left_s * 1000)), now_ms, in_hand
    )

    assert (refused is not None) is full
    if refused:
        assert (refused.code, refused.retriable) == ("busy", True)
        assert "29 calls are in hand, 2 are answered in a second" in refused.message


def test_idle_time_does_not_count_towards_the_rate() -> None:
    load, clock = loaded(20, 10.0)
    load.speed.look(3)
    clock.pass_by(1000)
    load.speed.look(20)

    assert load.speed.rate() is None


def test_a_stalled_engine_is_not_full_for_ever() -> None:
    load, clock = loaded(100, 10.0)
    for _ in range(20):
        assert load.speed.rate() is None or load.speed.rate() > 0  # type: ignore[operator]
        clock.pass_by(WINDOW_S)
        load.speed.look(20)

    assert load.speed.rate() is None


def test_a_busy_refusal_is_held_longer_each_time_within_bounds() -> None:
    one = replace(call(), not_after_ms=60_000)
    held = [hold_s(replace(one, tries=tries), 0) for tries in range(2000)]

    assert all(FIRST_HOLD_S / 2 <= each <= LONGEST_HOLD_S for each in held)
    assert held[:6] == sorted(held[:6])
    assert held[0] < held[5]
    assert hold_s(replace(one, command_id=b""), 0) == FIRST_HOLD_S / 2
    assert len({hold_s(asked(number), 0) for number in range(50)}) > 25
    assert hold_s(replace(one, tries=9), 59_000) == 1.0
    assert hold_s(replace(one, tries=9), 90_000) == FIRST_HOLD_S / 2


def asked(number: int, tries: int = 0, seconds: float = 5.0) -> ModelCall:
    name = f"r{number}"
    return replace(
        call(name, policy_id="p"), tries=tries, command_id=command_id(name, 1, 0, tries),
        not_after_ms=int((1_700_000_000 + seconds) * 1000),
    )  # fmt: skip


class Slow(ScriptedEngine):
    """Answers one call a step."""

    def step(self) -> list:  # type: ignore[type-arg]
        waiting = self._waiting.ready
        later = [waiting.pop() for _ in range(len(waiting) - 1)]
        answers = super().step()
        waiting.extend(reversed(later))
        return answers


def test_a_full_server_refuses_excess_calls_once_and_late() -> None:
    rig = Rig()
    loop = rig.models(Slow("p", lambda call: "yes"), capacity=1)
    for number in range(4):
        rig.write(rig.topics.calls("p"), f"r{number}", asked(number, seconds=60.0))
    loop.turn(0.0)
    for number in range(4, 12):
        rig.write(rig.topics.calls("p"), f"r{number}", asked(number, seconds=60.0))
    for _ in range(6):  # one a second
        rig.clock.pass_by(1.0)
        loop.turn(0.0)
    for number in range(90, 93):
        for _ in range(2):  # twice, as after a restart of the agents
            rig.write(rig.topics.calls("p"), f"r{number}", asked(number, seconds=7.0))
    loop.turn(0.0)
    before = refused(rig)
    rig.clock.pass_by(FIRST_HOLD_S)
    loop.turn(0.0)

    assert before == []
    assert sorted(refused(rig)) == sorted(2 * ["r90", "r91", "r92"])
    assert role_of(loop).counts["busy"] == 3
    assert role_of(loop).counts["expired"] == 0
    for _ in range(20):
        loop.turn(0.0)
    assert len(rig.events(ModelAnswered)) == 12
    assert role_of(loop).in_flight() == 0


def refused(rig: Rig) -> list[str]:
    found: list[Event] = rig.events(CallFailed)
    assert {each.body.code for each in found} <= {"busy"}  # type: ignore[union-attr]
    return [each.rollout_id for each in found]


def test_an_aborted_call_is_not_refused_as_busy() -> None:
    rig = Rig()
    loop = rig.models(ScriptedEngine("p", lambda call: "yes"))
    role_of(loop).load.hold(asked(1), CallFailed("busy", "full", True), [], 0)
    rig.write(rig.topics.calls("p"), "r1", replace(asked(1), kind="abort", messages=()))
    loop.turn(0.0)
    rig.clock.pass_by(60)
    loop.turn(0.0)

    assert refused(rig) == []
    assert role_of(loop).in_flight() == 0
