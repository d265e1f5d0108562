"""Calls that wait for weights never block calls that can begin."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.models.early_calls import MOST_AHEAD, MOST_EARLY
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import CallFailed, Event, ModelAnswered, ModelCall
from tests.support.model_calls import Counting, announce, answers, call_of, send
from tests.support.rig import Rig, role_of
from tests.support.tiers import examples

WANTED = st.sampled_from([1, 2, 5, MOST_AHEAD, MOST_AHEAD + 1, 10**6, 2**31 - 1])


def codes(rig: Rig) -> list[str]:
    return [body.code for body in answers(rig) if isinstance(body, CallFailed)]


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(WANTED, max_size=40), st.integers(2, 12), st.integers(1, 8), st.booleans())
def test_a_ready_call_begins_despite_early_calls(
    wishes: list[int], most_early: int, most_in_hand: int, pinned: bool
) -> None:
    rig = Rig()
    loop = rig.models(Counting(), most_in_hand=most_in_hand)
    role_of(loop)._early.most = most_early
    rig.settle(loop)
    for number, wanted in enumerate(wishes):
        field = "policy_version" if pinned else "min_policy_version"
        send(rig, call_of(f"wish{number}", **{field: wanted}))
    send(rig, call_of("ready"))

    rig.settle(loop)

    said = rig.read(rig.topics.events, Event)
    assert [e.rollout_id for e in said if isinstance(e.body, ModelAnswered)] == ["ready"]
    far = sum(wanted > MOST_AHEAD for wanted in wishes)
    assert codes(rig).count("version_unreachable") == far
    assert len(role_of(loop)._early) <= most_early


def test_a_call_too_far_ahead_fails_permanently(rig: Rig) -> None:
    loop = rig.models(Counting(version=7))
    send(rig, call_of(min_policy_version=7 + MOST_AHEAD + 1))

    rig.settle(loop)
    rig.commit(loop)

    (body,) = answers(rig)
    assert (body.code, body.retriable) == ("version_unreachable", False)
    assert "version 1008 of 'p' is wanted, and the newest is 7" in body.message
    assert rig.committed("t.models.p", rig.topics.calls("p")) == 1


def test_the_call_for_the_highest_version_fails_first_and_may_retry(
    rig: Rig,
) -> None:
    loop = rig.models(Counting())
    role_of(loop)._early.most = 2
    for wanted in (3, 9, 1):
        send(rig, call_of(f"r{wanted}", min_policy_version=wanted))

    rig.settle(loop)
    announce(rig, 3)
    rig.clock.pass_by(2.0)
    rig.settle(loop)

    failed, *answered = rig.read(rig.topics.events, Event)
    assert (failed.rollout_id, failed.body.code, failed.body.retriable) == (
        "r9", "version_awaited", True,
    )  # fmt: skip
    assert {event.rollout_id for event in answered} == {"r1", "r3"}


def test_calls_for_announced_versions_never_fail_by_number(rig: Rig) -> None:
    """Their weights are on the way: the server takes no more until it serves them."""
    engine = Counting()
    loop = rig.models(engine)
    role_of(loop)._early.most = 2
    rig.settle(loop)
    engine.trouble = Unavailable("the weights are away")
    announce(rig, 1)
    rig.clock.pass_by(2.0)
    rig.settle(loop)
    send(rig, *(call_of(f"r{number}", min_policy_version=1) for number in range(5)))

    rig.settle(loop)
    assert answers(rig) == []
    engine.trouble = None
    for _ in range(4):
        rig.clock.pass_by(60.0)
        rig.settle(loop)

    assert [type(body) for body in answers(rig)] == [ModelAnswered] * 5


def test_no_call_fails_for_waiting_before_any_weights_are_served(rig: Rig) -> None:
    loop = rig.models(Counting(version=-1), most_in_hand=4)
    calls: list[ModelCall] = [call_of(f"r{number}") for number in range(12)]
    send(rig, *calls)
    rig.settle(loop)
    assert answers(rig) == []

    announce(rig, 0)
    for _ in range(4):
        rig.clock.pass_by(2.0)
        rig.settle(loop)

    assert [type(body) for body in answers(rig)] == [ModelAnswered] * 12


@pytest.mark.parametrize("wanted", [1, MOST_AHEAD])
def test_excess_early_calls_of_a_partition_block_no_other_call(rig: Rig, wanted: int) -> None:
    loop = rig.models(Counting())
    for number in range(MOST_EARLY + 500):
        send(rig, call_of(f"wish{number}", min_policy_version=wanted))
    send(rig, call_of("ready"))

    rig.settle(loop, turns=60)

    events = rig.read(rig.topics.events, Event)
    assert [e.rollout_id for e in events if isinstance(e.body, ModelAnswered)] == ["ready"]


def test_calls_about_to_be_refused_block_no_other_call(rig: Rig) -> None:
    loop = rig.models(Counting(), most_in_hand=200)
    role = role_of(loop)
    rig.settle(loop)
    for number in range(600):
        held = call_of(f"held{number}", tries=9)
        record = Record("t.model.calls.p", 0, 10_000 + number, b"", b"", 0)
        role.load.hold(held, CallFailed("busy", "full", True), [record], 0)
    send(rig, call_of("ready"))

    rig.settle(loop)

    (event,) = rig.read(rig.topics.events, Event)
    assert (event.rollout_id, type(event.body)) == ("ready", ModelAnswered)
    assert len(role.load) == 600
