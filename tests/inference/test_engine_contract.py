"""The contract of all engines."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.settings import ModelsSettings, OpenAISettings
from rollcall.compose.workers.engines import server_engine
from rollcall.inference.engine import Engine, EngineAnswer
from rollcall.inference.openai_engine import OpenAIEngine
from rollcall.inference.recorded import RecordedEngine
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.inference.vllm_engine import VllmEngine
from rollcall.schemas.errors import Unavailable, WorkFailed
from rollcall.schemas.messages import CallFailed, Event, ModelAnswered, PolicyVersion
from tests.support.engines import left_out
from tests.support.openai_mock import MockServer, chat, sampled, serving
from tests.support.policies import body, call, failure, run, take, tokens, version_of
from tests.support.vllm_cores import Cores

CORES = Cores()
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


def vllm(lake: Path) -> Engine:
    if find_spec("vllm") is None:
        left_out("vllm", "its engine; `make vllm` installs it")
    return VllmEngine("policy", lake, start=CORES.lend)


@pytest.fixture(scope="module", autouse=True)
def _end_of_vllm() -> Iterator[None]:
    yield
    CORES.close()


VLLM = pytest.param(vllm, marks=pytest.mark.vllm, id="vllm")
LOADING = [scripted, recorded, transformers, VLLM]


@pytest.fixture(params=LOADING, ids=lambda make: make.__name__)
def engine(request: pytest.FixtureRequest, lake: Path) -> Iterator[Engine]:
    """An engine that follows the versions of its policy."""
    make: Callable[[Path], Engine] = request.param
    yield make(lake)
    CORES.take_back()


def speak(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of the server behind the engine `openai`."""
    return sampled(body, "L", [2]) if path == "completions" else chat("L")


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with serving(speak) as server:
        yield server


@pytest.fixture(params=[*LOADING, "chat", "completions"], ids=lambda m: getattr(m, "__name__", m))
def ready(request: pytest.FixtureRequest, lake: Path, server: MockServer) -> Iterator[Engine]:
    """An engine that serves version 0, including engines that have no other version."""
    if not isinstance(request.param, str):
        loading: Engine = request.param(lake)
        take(loading, request.getfixturevalue("versions")[0])
        yield loading
        CORES.take_back()
        return
    options = OpenAISettings(base_url=server.url, model="m", api=request.param)
    directory = lake if request.param == "completions" else None
    yield server_engine("policy", directory, ModelsSettings(openai=options))


def said_by(engine: Engine, version: int) -> int:
    """The version that an answer names while this one is served; recorded answers name 0."""
    return 0 if isinstance(engine, RecordedEngine) else version


@pytest.fixture(params=[transformers, VLLM], ids=lambda make: make.__name__)
def proving(request: pytest.FixtureRequest, lake: Path) -> Iterator[Engine]:
    """An engine that loads weights, and therefore proves them."""
    make: Callable[[Path], Engine] = request.param
    yield make(lake)
    CORES.take_back()


def begin(engine: Engine) -> list[EngineAnswer]:
    """Step until part of an answer is sampled, and return the answers that have ended."""
    answers = engine.step()
    deadline = time.monotonic() + 60
    while isinstance(engine, VllmEngine) and not engine.sampled_tokens:
        assert time.monotonic() < deadline, "vLLM samples nothing"
        time.sleep(engine.wait_s)
        answers += engine.step()
    return answers


def test_expired_calls_are_handed_back_and_calls_in_time_are_kept(
    ready: Engine,
) -> None:
    late, held = (
        replace(call("r0"), not_after_ms=999),
        replace(call("r1", min_policy_version=2), not_after_ms=999),
    )
    last = replace(call("r2"), not_after_ms=1000)
    for each in (late, held, last):
        ready.add(each)

    handed_back = ready.expire(1000)

    assert handed_back == [late, held]
    assert ready.expire(1000) == []
    assert [answer.call for answer in run(ready)] == [last]


def test_calls_are_not_answered_before_the_first_version(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.add(call())

    assert engine.version == -1
    assert not engine.busy()
    assert engine.step() == []

    take(engine, versions[0])

    assert engine.version == 0
    assert engine.busy()
    assert len(run(engine)) == 1


def test_every_call_gets_exactly_one_answer(ready: Engine) -> None:
    calls = [call(rollout) for rollout in ROLLOUTS]

    answers = run(ready, *calls)

    assert [answer.call for answer in answers] == calls
    assert all(isinstance(answer.body, ModelAnswered) for answer in answers)
    assert ready.step() == []


def test_an_answer_names_its_policy_engine_and_weights(ready: Engine) -> None:

    answered = body(ready, call())

    assert answered.policy_id == "policy"
    assert answered.sequence == 0
    assert answered.engine
    assert answered.precision == ("" if isinstance(ready, OpenAIEngine) else "float32")
    assert answered.template_digest
    assert answered.finish_reason in ("stop", "length")
    assert answered.versions == bytes(4) * (len(answered.token_ids) // 4)


def test_a_call_that_needs_newer_weights_waits_for_them(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    take(engine, versions[0])

    assert run(engine, call("r1", min_policy_version=2)) == []

    take(engine, versions[1])
    assert run(engine) == []
    take(engine, versions[2])
    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]


def test_policy_versions_never_go_back(engine: Engine, versions: list[PolicyVersion]) -> None:
    take(engine, versions[2])

    take(engine, versions[1])
    take(engine, versions[2])

    assert engine.version == 2


def test_a_staged_version_changes_nothing_before_it_is_adopted(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    take(engine, versions[0])
    engine.add(call("r0"))
    with ThreadPoolExecutor(1) as thread:
        staging = thread.submit(engine.stage, versions[1])
        while not staging.done():
            if not engine.busy():
                engine.add(call("r0"))
            engine.step()
    run(engine)
    before = body(engine, call("r1"))
    engine.adopt()

    assert set(tokens(before.versions)) == {0}
    assert engine.version == 1
    assert set(tokens(body(engine, call("r2")).versions)) == {said_by(engine, 1)}


def test_adopt_does_nothing_without_a_staged_version(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    engine.adopt()
    assert engine.version == -1
    take(engine, versions[1])
    engine.stage(versions[0])

    engine.adopt()

    assert engine.version == 1


def test_the_version_staged_last_is_adopted(engine: Engine, versions: list[PolicyVersion]) -> None:
    engine.stage(versions[0])
    engine.stage(versions[2])

    engine.adopt()

    assert engine.version == 2


def test_an_answer_across_an_adoption_marks_each_tokens_version(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    take(engine, versions[0])
    engine.add(call("r0", max_tokens=90))
    begins = not isinstance(engine, ScriptedEngine)  # which needs one step for all of an answer
    begun = begin(engine) if begins else []

    take(engine, versions[1])
    [answer] = begun + run(engine)

    assert isinstance(answer.body, ModelAnswered)
    found = tokens(answer.body.versions)
    assert found == sorted(found)
    assert found[-1] == said_by(engine, 1)
    assert found[0] == (0 if begins else said_by(engine, 1))


def test_weights_with_a_wrong_canary_are_dropped_and_the_previous_stay(
    proving: Engine, lake: Path, versions: list[PolicyVersion]
) -> None:
    take(proving, versions[0])
    before = body(proving, call("r0"))

    with pytest.raises(WorkFailed, match=r"canary of version 1 is off by .* nats") as caught:
        take(proving, version_of(lake, 1, canary_off_by=0.5))
    proving.adopt()

    assert caught.value.code == "canary"
    assert proving.version == 0
    assert body(proving, call("r0")) == before
    take(proving, versions[1])
    assert proving.version == 1


def test_an_unreadable_file_leaves_no_staged_version(
    proving: Engine, versions: list[PolicyVersion]
) -> None:
    take(proving, versions[0])
    gone = replace(versions[1], full=replace(versions[1].full, uri="file:///nowhere"))
    proving.stage(versions[1])

    with pytest.raises(Unavailable):
        proving.stage(gone)
    proving.adopt()

    assert proving.version == 0


def test_a_twin_waits_for_its_first_weights_and_keeps_them(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    take(engine, versions[1])
    replica = engine.replica()
    fresh = replica.version, replica.busy()

    take(replica, versions[1])
    before = body(replica, call("r0"))
    take(engine, versions[2])
    engine.add(call("r1"))

    assert fresh == (-1, False)
    assert (engine.version, replica.version) == (2, 1)
    assert body(replica, call("r0")) == before
    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]


def test_aborted_calls_get_no_answer_and_the_next_attempt_does(
    engine: Engine, versions: list[PolicyVersion]
) -> None:
    take(engine, versions[0])
    for rollout in ROLLOUTS[:2]:
        engine.add(call(rollout))
    engine.add(call("r0", min_policy_version=1))

    engine.abort("r0", 1)
    take(engine, versions[1])

    assert [answer.call.rollout_id for answer in run(engine)] == ["r1"]

    engine.add(call("r0", attempt=2))
    engine.abort("r0", 1)
    assert engine.busy()


def test_an_unknown_prefix_is_requested(ready: Engine) -> None:

    failed = failure(ready, call(prefix=None, prefix_length=3))

    assert isinstance(failed, CallFailed)
    assert failed.code == "prefix_needed"
    assert failed.retriable


def test_a_call_aborted_after_its_start_gets_no_answer(ready: Engine) -> None:
    for rollout in ROLLOUTS[:2]:
        ready.add(call(rollout))
    early = ready.step() if isinstance(ready, OpenAIEngine) else []  # it is in the air now

    ready.abort("r0", 1)

    assert [answer.call.rollout_id for answer in early + run(ready)] == ["r1"]
