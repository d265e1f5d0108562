"""What every engine promises, whatever stands behind it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.engine import Engine
from inference.recorded import RecordedEngine
from inference.scripted import ScriptedEngine
from inference.transformers_engine import TransformersEngine
from schemas.messages import CallFailed, Event, ModelAnswered, PolicyVersion
from tests.support.policies import body, call, failure, run, version_of

ROLLOUTS = ("r0", "r1", "r2", "r3")


@pytest.fixture(scope="module")
def versions(lake: Path) -> list[PolicyVersion]:
    return [version_of(lake, number) for number in range(3)]


def scripted(lake: Path) -> Engine:
    return ScriptedEngine("policy", lambda call: "L", version=-1)


def recorded(lake: Path) -> Engine:
    calls = [call(rollout) for rollout in ROLLOUTS]
    script = ScriptedEngine("policy", lambda call: "L")
    events = [
        Event(a.call.rollout_id, 1, 0, 0, a.call.command_id, a.call.body_digest, "w", a.body)
        for a in run(script, *calls)
    ]
    return RecordedEngine("policy", events, version=-1)


def transformers(lake: Path) -> Engine:
    return TransformersEngine("policy", lake)


@pytest.fixture(params=[scripted, recorded, transformers], ids=lambda make: make.__name__)
def engine(request: pytest.FixtureRequest, lake: Path) -> Engine:
    make: Callable[[Path], Engine] = request.param
    return make(lake)


def test_calls_that_may_not_begin_any_more_are_handed_back_and_those_in_time_are_not(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[0])
    late, held = (
        replace(call("r0"), not_after_ms=999),
        replace(call("r1", min_policy_version=2), not_after_ms=999),
    )
    last = replace(call("r2"), not_after_ms=1000)
    for each in (late, held, last):
        engine.add(each)

    handed_back = engine.expire(1000)

    assert handed_back == [late, held]
    assert engine.expire(1000) == []
    assert [answer.call for answer in run(engine)] == [last]


def test_nothing_is_answered_before_there_is_a_version(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.add(call())

    assert engine.version == -1
    assert not engine.busy()
    assert engine.step() == []

    engine.adopt(versions[0])

    assert engine.version == 0
    assert engine.busy()
    assert len(run(engine)) == 1


def test_every_call_gets_exactly_one_answer(engine: Engine, versions: list[PolicyVersion]) -> None:
    engine.adopt(versions[0])
    calls = [call(rollout) for rollout in ROLLOUTS]

    answers = run(engine, *calls)

    assert [answer.call for answer in answers] == calls
    assert all(isinstance(answer.body, ModelAnswered) for answer in answers)
    assert engine.step() == []


def test_an_answer_says_who_gave_it_and_under_which_weights(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[0])

    answered = body(engine, call())

    assert answered.policy_id == "policy"
    assert answered.sequence == 0
    assert answered.engine
    assert answered.precision == "float32"
    assert answered.template_digest
    assert answered.finish_reason in ("stop", "length")
    assert answered.versions == bytes(4) * (len(answered.token_ids) // 4)


def test_a_call_that_wants_newer_weights_waits_for_them(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[0])

    assert run(engine, call("r1", min_policy_version=2)) == []

    engine.adopt(versions[1])
    assert run(engine) == []
    engine.adopt(versions[2])
    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]


def test_versions_never_go_back(engine: Engine, versions: list[PolicyVersion]) -> None:
    engine.adopt(versions[2])

    engine.adopt(versions[1])
    engine.adopt(versions[2])

    assert engine.version == 2


def test_a_twin_waits_for_its_first_weights_and_keeps_them_while_the_other_goes_on(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[1])
    twin = engine.twin()
    fresh = twin.version, twin.busy()

    twin.adopt(versions[1])
    before = body(twin, call("r0"))
    engine.adopt(versions[2])
    engine.add(call("r1"))

    assert fresh == (-1, False)
    assert (engine.version, twin.version) == (2, 1)
    assert body(twin, call("r0")) == before
    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]


def test_aborted_calls_get_no_answer_and_the_next_attempt_does(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[0])
    for rollout in ROLLOUTS[:2]:
        engine.add(call(rollout))
    engine.add(call("r0", min_policy_version=1))

    engine.abort("r0", 1)
    engine.adopt(versions[1])

    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]

    engine.add(call("r0", attempt=2))
    engine.abort("r0", 1)
    assert engine.busy()


def test_a_prefix_that_is_only_named_is_asked_for(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt(versions[0])

    failed = failure(engine, call(prefix=None, prefix_length=3))

    assert isinstance(failed, CallFailed)
    assert failed.code == "prefix_needed"
    assert failed.retriable
