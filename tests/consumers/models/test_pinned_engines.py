"""Pinned calls are answered by exactly their version, whatever is announced meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rollcall.consumers.models.pinned_engines import IDLE_S, PinnedEngines
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import Unavailable, WeightsMissing, WorkFailed
from rollcall.schemas.messages import CallFailed, ModelAnswered, PolicyVersion, WeightsFile
from rollcall.schemas.packed import ids_of
from tests.support.model_calls import announce, answers, call_of, send
from tests.support.rig import Clock, Rig, role_of


class Slow(ScriptedEngine):
    """Takes its time to load a version, or cannot."""

    def __init__(self, clock: Clock, loads_s: float = 0.0, version: int = -1) -> None:
        super().__init__("p", lambda call: "x", version=version)
        self.clock, self.loads_s = clock, loads_s
        self.trouble: Exception | None = None

    def stage(self, version: PolicyVersion) -> None:
        self.clock.pass_by(self.loads_s)
        if self.trouble:
            raise self.trouble
        super().stage(version)


def served(rig: Rig) -> list[set[int]]:
    """Which versions each answer was sampled by, in order of positions."""
    found: list[Any] = [body for body in answers(rig) if isinstance(body, ModelAnswered)]
    by_text = sorted(found, key=lambda body: str(body.text))
    return [set(ids_of(body.versions).tolist()) for body in by_text]


def talking() -> ScriptedEngine:
    return ScriptedEngine("p", lambda call: f"to {call.position}", version=-1)


def test_a_pinned_call_is_answered_by_its_version_after_newer_adoptions(rig: Rig) -> None:
    engine = talking()
    loop = rig.models(engine)
    for version in (3, 4, 5):
        announce(rig, version)
    send(rig, call_of(), call_of(position=1, policy_version=3, min_policy_version=3))
    rig.settle(loop)
    announce(rig, 6)
    rig.clock.pass_by(1.0)
    rig.settle(loop)

    send(rig, call_of(position=2, policy_version=3), call_of(position=3))
    rig.settle(loop)

    assert served(rig) == [{5}, {3}, {3}, {6}]
    assert engine.version == 6


def test_a_call_waits_for_its_unannounced_version(rig: Rig) -> None:
    loop = rig.models(talking())
    announce(rig, 1)
    send(rig, call_of(policy_version=2))
    rig.settle(loop)
    before = answers(rig)

    for version in (2, 3):
        announce(rig, version)
    rig.clock.pass_by(1.0)
    rig.settle(loop)

    assert before == []
    assert served(rig) == [{2}]


def test_a_version_without_a_record_is_refused_permanently(rig: Rig) -> None:
    loop = rig.models(talking())
    announce(rig, 7)
    send(rig, call_of(policy_version=2))
    rig.settle(loop)

    [failed] = answers(rig)
    assert isinstance(failed, CallFailed)
    assert (failed.code, failed.retriable) == ("version_gone", False)
    assert "version 2 of 'p' is not announced any more; the newest is 7" in failed.message


def test_an_unannounced_version_is_served_by_its_holder(rig: Rig) -> None:
    loop = rig.models(ScriptedEngine("p", lambda call: "hello", version=0))
    send(rig, call_of(policy_version=0))
    rig.settle(loop)

    assert served(rig) == [{0}]


def test_an_aborted_pinned_call_gets_no_answer(rig: Rig) -> None:
    loop = rig.models(talking())
    announce(rig, 1)
    rig.settle(loop)
    asleep = talking()
    role_of(loop).pinned.replica = lambda: asleep
    asleep.busy = lambda: False  # type: ignore[method-assign]
    send(rig, call_of(policy_version=1))
    rig.settle(loop)

    send(rig, call_of(kind="abort"))
    rig.settle(loop)
    del asleep.busy  # type: ignore[method-assign]
    rig.settle(loop)

    assert answers(rig) == []
    assert role_of(loop).in_flight() == 0


# Engines and their versions


def version(number: int) -> PolicyVersion:
    weights = WeightsFile("file:///nowhere", "", 0, "", number)
    return PolicyVersion("p", number, -1, "run", 0, "", weights, bytes(4), b"")


def test_an_engine_is_reused_only_for_newer_versions() -> None:
    clock, made = Clock(), list[Slow]()

    def replica() -> Slow:
        made.append(Slow(clock))
        return made[-1]

    pinned = PinnedEngines(replica, clock, most=1)

    for number in (2, 4, 3):
        assert pinned.serving(version(number))
        assert pinned.versions() == [number]

    assert len(made) == 2


def test_a_version_keeps_its_engine_for_ten_times_its_load_time() -> None:
    clock = Clock()
    pinned = PinnedEngines(lambda: Slow(clock, loads_s=0.5), clock, most=1)
    first = pinned.serving(version(1))
    clock.pass_by(4.9)

    early = pinned.serving(version(2))
    again = pinned.serving(version(1))
    clock.pass_by(5.1)
    late = pinned.serving(version(2))

    assert early is None
    assert again is first
    assert late is not None
    assert pinned.versions() == [2]


def test_an_engine_with_calls_in_hand_is_not_reused() -> None:
    clock = Clock()
    pinned = PinnedEngines(lambda: Slow(clock), clock, most=1)
    engine = pinned.serving(version(1))
    assert engine is not None
    engine.add(call_of())
    clock.pass_by(1000.0)
    pinned.tidy()

    assert pinned.serving(version(2)) is None
    assert len(pinned.step()) == 1
    assert pinned.serving(version(2)) is not None


@pytest.mark.parametrize(("loads_s", "held_s"), [(0.0, IDLE_S), (5.0, IDLE_S), (90.0, 90.0)])
def test_an_idle_version_frees_its_memory_after_a_while(loads_s: float, held_s: float) -> None:
    clock = Clock()
    pinned = PinnedEngines(lambda: Slow(clock, loads_s), clock)
    pinned.serving(version(1))
    clock.pass_by(held_s - 1)
    pinned.tidy()
    held = pinned.versions()
    clock.pass_by(2.0)
    pinned.tidy()

    assert (held, pinned.versions()) == ([1], [])


class Later:
    """A thread that does its work when the test says so."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()

    def submit(self, work: Callable[..., None], *args: Any) -> Future[None]:
        work(*args)
        return self.done


@pytest.mark.parametrize(("asked", "made"), [(True, 1), (False, 2)])
def test_a_slowly_loaded_version_is_dropped_only_if_no_call_asks(asked: bool, made: int) -> None:
    clock, thread = Clock(), Later()
    replicas: list[Slow] = []

    def replica() -> Slow:
        replicas.append(Slow(clock))
        return replicas[-1]

    pinned = PinnedEngines(replica, clock, thread=thread)  # type: ignore[arg-type]
    assert pinned.serving(version(1)) is None
    for _ in range(4):
        clock.pass_by(30.0)
        if asked:
            assert pinned.serving(version(1)) is None
    thread.done.set_result(None)
    pinned.tidy()

    assert pinned.serving(version(1)) is not None
    assert len(replicas) == made


@pytest.mark.parametrize(
    ("trouble", "given_up"),
    [
        (Unavailable("the store is away"), False),
        (WeightsMissing("deleted"), True),
        (WorkFailed("canary", "it sings", retriable=False), True),
    ],
)
def test_an_unavailable_store_is_awaited_and_missing_weights_given_up(
    trouble: Exception, given_up: bool
) -> None:
    clock = Clock()
    engine = Slow(clock)
    engine.trouble = trouble
    pinned = PinnedEngines(lambda: engine, clock)

    for _ in range(2):
        assert pinned.serving(version(1)) is None
        assert pinned.serving(version(1)) is None
        clock.pass_by(1.1)

    if given_up:
        with pytest.raises(WorkFailed, match="version 1 of 'p'") as raised:
            pinned.serving(version(1))
        assert (raised.value.code, raised.value.retriable) == ("version_gone", False)
    else:
        assert pinned.serving(version(1)) is None
    engine.trouble = None
    clock.pass_by(1.1)
    assert pinned.serving(version(1)) is engine


def test_a_call_fails_alone_if_memory_lacks_a_second_copy() -> None:
    def full() -> Slow:
        msg = "CUDA out of memory"
        raise RuntimeError(msg)

    with pytest.raises(WorkFailed, match="CUDA out of memory"):
        PinnedEngines(full, Clock()).serving(version(1))
