"""The environments group on the in-memory log: steps in, observations out."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollcall.consumers.environments.sessions.session_step import SessionTimes
from rollcall.consumers.loop.loop import Loop
from rollcall.sandbox.environment import Environment, Observation
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped, Event
from tests.support.rig import Rig, role_of, source_of

FAR_MS = 2_000_000_000_000
PATIENCE_S = 20.0


class Parrot:
    """Repeats its actions; "hang" hangs until the test ends."""

    replayable = True

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.said: list[str] = []
        self.threads: set[int] = set()
        self.closed = False

    def open(self, seed: int) -> Observation:
        if seed == 13:
            self.gate.wait()
        return Observation(f"seed {seed}")

    def step(self, action: str) -> Observation:
        if action == "hang":
            self.gate.wait()
        if action == "boom":
            raise RuntimeError(action)
        if action == "surrogate":
            raise RuntimeError("broken \ud83d text")
        if action == "interrupt":
            raise KeyboardInterrupt
        self.said.append(action)
        self.threads.add(threading.get_ident())
        return Observation(",".join(self.said), 1.0, action == "end")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Hung environments return at the end of the test, so that no thread outlives it."""
    gate = threading.Event()
    yield gate
    gate.set()


class Maker:
    """Makes parrots for one test and counts them; threads of other tests have their own."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.parrots: list[Parrot] = []
        self.kind: type[Parrot] = Parrot

    @property
    def made(self) -> int:
        return len(self.parrots)

    def __call__(self, name: str, config: str) -> Environment:
        self.parrots.append(self.kind(self.gate))
        return self.parrots[-1]


@pytest.fixture
def make(gate: threading.Event) -> Maker:
    return Maker(gate)


def step_of(
    rollout_id: str = "r",
    position: int = 0,
    kind: str = "reset",
    action: str = "",
    *,
    index: int = 0,
    tries: int = 0,
    **fields: Any,
) -> EnvironmentStep:
    place = rollout_id, 1, position, tries
    given = {"not_after_ms": FAR_MS, "timeout_s": 30.0} | fields
    not_after_ms = given.pop("not_after_ms")
    return EnvironmentStep(
        *place, command_id(*place), b"digest", 0, not_after_ms, kind, "parrot",
        index=index, action=action, **given,
    )  # fmt: skip


def send(rig: Rig, *steps: EnvironmentStep) -> None:
    for step in steps:
        rig.write(rig.topics.steps, step.rollout_id, step, 0)


def answers(rig: Rig) -> dict[tuple[str, int, int], Any]:
    return {(e.rollout_id, e.position, e.tries): e.body for e in rig.read(rig.topics.events, Event)}


def until(loop: Loop, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        loop.turn(0.0)
        loop.role.tick()


def test_steps_are_answered_into_their_named_partition(
    make: Maker,
) -> None:
    rig = Rig(partitions=3)
    loop = rig.environments(make=make)
    reset = replace(step_of(seed=7), answer_partition=2)

    rig.write(rig.topics.steps, "r", reset, 1)
    rig.settle(loop)

    record = rig.log.all(rig.topics.events)[0]
    event = rig.codec.decode(record.value, Event)
    assert (record.partition, record.key) == (2, b"r")
    assert (event.command_id, event.body_digest) == (reset.command_id, b"digest")
    assert (event.written_by, event.body.text) == ("e1", "seed 7")


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_rollouts_are_stepped_in_order_on_any_number_of_threads(
    rig: Rig, make: Maker, threads: int
) -> None:
    loop = rig.environments(make=make, threads=threads)
    for name in "abcdef":
        send(rig, step_of(name))
        send(rig, *(step_of(name, n + 1, "step", f"{name}{n}", index=n) for n in range(3)))

    until(loop, lambda: len(answers(rig)) == 24)
    until(loop, lambda: not loop.role.in_flight())
    rig.commit(loop)

    for name in "abcdef":
        assert answers(rig)[name, 3, 0].text == f"{name}0,{name}1,{name}2"
    assert make.made == 6
    assert rig.committed("t.environments", rig.topics.steps) == 24


def test_a_hung_environment_fails_only_its_own_step(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make, threads=1)
    send(rig, step_of("hangs"), step_of("other"))
    until(loop, lambda: len(answers(rig)) == 2)

    send(rig, step_of("hangs", 1, "step", "hang", timeout_s=0.05))
    send(rig, step_of("other", 1, "step", "on", history=()))
    until(loop, lambda: len(answers(rig)) == 4)
    until(loop, lambda: not loop.role.in_flight())
    rig.commit(loop)

    hung = answers(rig)["hangs", 1, 0]
    assert (hung.code, hung.retriable) == ("deadline", True)
    assert "abandoned" in hung.message
    assert answers(rig)["other", 1, 0].text == "on"
    assert role_of(loop).counts["abandoned"] == 1
    assert rig.committed("t.environments", rig.topics.steps) == 4


def test_a_late_answer_of_a_hung_environment_is_ignored(
    rig: Rig, make: Maker, gate: threading.Event
) -> None:
    loop = rig.environments(make=make, threads=1)
    send(rig, step_of("hangs", seed=13, timeout_s=0.05))
    until(loop, lambda: len(answers(rig)) == 1)

    gate.set()
    send(rig, step_of("next"))
    until(loop, lambda: len(answers(rig)) == 2)

    assert len(rig.log.all(rig.topics.events)) == 2
    assert isinstance(answers(rig)["hangs", 0, 0], CallFailed)


def test_a_step_that_waited_past_its_deadline_is_not_done(
    rig: Rig, make: Maker, gate: threading.Event
) -> None:
    loop = rig.environments(make=make, threads=1)
    now_ms = int(rig.clock.now * 1000)
    send(rig, step_of("hangs", seed=13), step_of("late", not_after_ms=now_ms + 1000))
    loop.turn(0.0)

    rig.clock.pass_by(2.0)
    gate.set()
    until(loop, lambda: len(answers(rig)) == 2)

    assert answers(rig)["hangs", 0, 0].text == "seed 13"
    assert answers(rig)["late", 0, 0].code == "expired"


class Frail(Parrot):
    """Cannot be rebuilt."""

    replayable = False


class Rooted(Frail):
    """Must stay on the thread that it was opened on."""

    thread_bound = True


def open_on_one_thread(rig: Rig, make: Maker, *names: str, **options: Any) -> Loop:
    """A worker with a single thread and an open session for each name."""
    loop = rig.environments(make=make, threads=1, **options)
    send(rig, *map(step_of, names))
    until(loop, lambda: len(answers(rig)) == len(names))
    return loop


def test_a_hung_step_does_not_affect_other_sessions(rig: Rig, make: Maker) -> None:
    make.kind = Frail
    others = [f"r{n}" for n in range(50)]
    loop = open_on_one_thread(rig, make, "hangs", *others)

    for tries in range(3):
        send(rig, step_of("hangs", 1, "step", "hang", tries=tries, timeout_s=0.05))
        send(rig, *(step_of(name, tries + 1, "step", "on", index=tries) for name in others))
        until(loop, lambda tries=tries: ("hangs", 1, tries) in answers(rig))
    until(loop, lambda: not loop.role.in_flight())

    codes = [answers(rig)["hangs", 1, tries].code for tries in range(3)]
    assert codes == ["deadline", "session_lost", "session_lost"]
    assert {answers(rig)[name, 3, 0].text for name in others} == {"on,on,on"}
    assert role_of(loop).counts["abandoned"] == 1


def test_a_long_step_blocks_no_other_and_is_still_answered(
    rig: Rig, make: Maker, gate: threading.Event
) -> None:
    make.kind = Frail
    loop = open_on_one_thread(rig, make, "slow", "other", times=SessionTimes(slow_s=0.05))
    slow, other = make.parrots

    send(rig, step_of("slow", 1, "step", "hang"), step_of("other", 1, "step", "on"))
    until(loop, lambda: ("other", 1, 0) in answers(rig))
    assert ("slow", 1, 0) not in answers(rig)
    gate.set()
    send(rig, step_of("slow", 2, "step", "end", index=1))
    until(loop, lambda: ("slow", 2, 0) in answers(rig))

    assert answers(rig)["slow", 2, 0].text == "hang,end"
    assert (len(slow.threads), slow.threads & other.threads) == (1, set())
    until(loop, lambda: not role_of(loop).threads.apart)
    assert role_of(loop).counts["abandoned"] == 0


def test_a_thread_bound_session_is_not_moved(rig: Rig, make: Maker, gate: threading.Event) -> None:
    make.kind = Rooted
    loop = open_on_one_thread(rig, make, "slow", "other", times=SessionTimes(slow_s=0.05))
    send(rig, step_of("other", 1, "step", "on"))
    until(loop, lambda: ("other", 1, 0) in answers(rig))

    send(rig, step_of("slow", 1, "step", "hang"))
    until(loop, lambda: role_of(loop).counts["left_alone"] == 1)
    send(rig, step_of("other", 2, "step", "on", index=1), step_of("third"))
    until(loop, lambda: ("third", 0, 0) in answers(rig))
    assert ("other", 2, 0) not in answers(rig)
    gate.set()
    until(loop, lambda: ("other", 2, 0) in answers(rig))

    slow, other, _ = make.parrots
    assert len(slow.threads | other.threads) == 1


def test_a_hung_close_blocks_no_other_and_the_others_are_closed(
    make: Maker, gate: threading.Event
) -> None:
    class Clinging(Frail):
        left = 0

        def close(self) -> None:
            if not self.said:
                self.gate.wait()
            Clinging.left += 1

    make.kind = Clinging
    rig = Rig(partitions=2)
    loop = rig.environments(make=make, threads=1, times=SessionTimes(close_s=0.05))
    rig.write(rig.topics.steps, "clings", step_of("clings"), 1)
    rig.write(rig.topics.steps, "b", step_of("b"), 1)
    rig.write(rig.topics.steps, "b", step_of("b", 1, "step", "on"), 1)
    rig.write(rig.topics.steps, "c", step_of("c"), 0)
    until(loop, lambda: len(answers(rig)) == 4)

    heir = rig.environments("e2", make=make)
    heir.turn(0.0)
    until(loop, lambda: Clinging.left == 1)
    rig.write(rig.topics.steps, "c", step_of("c", 1, "step", "on"), 0)
    until(loop, lambda: ("c", 1, 0) in answers(rig))

    assert answers(rig)["c", 1, 0].text == "on"


@pytest.mark.parametrize(
    ("action", "threads"),
    [("surrogate", 0), ("surrogate", 1), ("interrupt", 1)],  # on the main thread that is Ctrl-C
)
def test_an_environment_that_raises_fails_only_its_own_step(
    rig: Rig, make: Maker, action: str, threads: int
) -> None:
    loop = rig.environments(make=make, threads=threads)
    send(rig, step_of("bad"), step_of("bad", 1, "step", action), step_of("good"))

    until(loop, lambda: len(answers(rig)) == 3)
    rig.commit(loop)

    assert answers(rig)["bad", 1, 0].code == "raised"
    assert answers(rig)["good", 0, 0].text == "seed 0"
    assert rig.committed("t.environments", rig.topics.steps) == 3


class Deadly(Parrot):
    """Ends its thread when it is made."""

    def __init__(self, gate: threading.Event) -> None:
        raise SystemError


def test_a_dead_thread_is_replaced_and_its_step_answered(rig: Rig, make: Maker) -> None:
    make.kind = Frail
    loop = open_on_one_thread(rig, make, "good", "bad")
    make.kind = Deadly

    other = step_of("bad", 1, session="other")
    send(rig, other, step_of("good", 1, "step", "on"))
    until(loop, lambda: len(answers(rig)) == 4)
    until(loop, lambda: not loop.role.in_flight())
    rig.commit(loop)

    bad = answers(rig)["bad", 1, 0]
    assert (bad.code, bad.retriable) == ("raised", False)
    assert "SystemError" in bad.message
    assert answers(rig)["good", 1, 0].text == "on"
    assert role_of(loop).counts["died"] == 1
    assert [parrot.closed for parrot in make.parrots] == [False, True]
    assert rig.committed("t.environments", rig.topics.steps) == 4


class Coy(Parrot):
    """Its attributes raise."""

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        raise SystemError

    @property
    def thread_bound(self) -> bool:
        raise SystemError


@pytest.mark.parametrize("kind", ["reset", "step"])
def test_an_environment_whose_attributes_raise_fails_its_step(
    rig: Rig, make: Maker, kind: str
) -> None:
    make.kind = Coy
    loop = rig.environments(make=make, threads=1)

    send(rig, step_of(kind=kind))
    until(loop, lambda: len(answers(rig)) == 1)

    assert answers(rig)["r", 0, 0].code == "raised"
    assert role_of(loop).counts["died"] == 0


@pytest.mark.parametrize("partition", [1, 99, -1])
def test_a_step_with_an_invalid_answer_partition_is_buried(
    rig: Rig, make: Maker, partition: int
) -> None:
    loop = rig.environments(make=make)
    send(rig, replace(step_of("lost"), answer_partition=partition), step_of("next"))

    rig.settle(loop)
    rig.commit(loop)

    buried = rig.log.all(rig.topics.dead_letters)
    assert [dict(record.headers or ())["dlq_error"] for record in buried] == [b"NoSuchPartition"]
    assert [key[0] for key in answers(rig)] == ["next"]
    assert rig.committed("t.environments", rig.topics.steps) == 2


def test_a_partition_added_at_run_time_receives_answers(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    rig.log.create(rig.topics.events, 3)

    send(rig, replace(step_of(), answer_partition=2))
    rig.settle(loop)

    assert [record.partition for record in rig.log.all(rig.topics.events)] == [2]


def test_a_hung_thread_does_not_block_another(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make, threads=2)
    send(rig, step_of("hangs", seed=13))
    others = [f"r{n}" for n in range(20)]
    send(rig, *map(step_of, others))

    until(loop, lambda: len(answers(rig)) >= 5)

    assert ("hangs", 0, 0) not in answers(rig)


def test_a_repeated_step_is_answered_from_the_kept_answers(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    on = step_of("r", 1, "step", "on")
    send(rig, step_of(), on)
    rig.settle(loop)

    send(rig, on, step_of(), on)
    rig.settle(loop)

    bodies = [e.body for e in rig.read(rig.topics.events, Event)]
    assert [body.text for body in bodies] == ["seed 0", "on", "on", "seed 0", "on"]
    assert (make.made, role_of(loop).counts["answered_again"]) == (1, 3)


def test_a_failure_is_not_kept_for_repeated_steps(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    boom = step_of("r", 1, "step", "boom", history=())

    send(rig, step_of(), boom, boom)
    rig.settle(loop)

    codes = [getattr(e.body, "code", "") for e in rig.read(rig.topics.events, Event)]
    assert codes == ["", "raised", "raised"]
    assert role_of(loop).counts["answered_again"] == 0


def test_a_worker_with_a_fast_clock_does_its_steps_in_time(rig: Rig, make: Maker) -> None:
    rig.wall = lambda: rig.clock() + 130.0
    loop = rig.environments(make=make)

    send(rig, step_of("r", not_after_ms=int(rig.clock.now * 1000) + 60_000))
    rig.settle(loop)

    assert answers(rig)["r", 0, 0].text == "seed 0"


def test_an_expired_step_is_not_done(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    now_ms = int(rig.clock.now * 1000)
    send(rig, step_of("late", not_after_ms=now_ms - 1500), step_of("last", not_after_ms=now_ms))

    rig.settle(loop)

    late = answers(rig)["late", 0, 0]
    assert (late.code, late.retriable, make.made) == ("expired", True, 1)
    assert "1.5 s" in late.message
    assert answers(rig)["last", 0, 0].text == "seed 0"


def test_an_unknown_session_is_rebuilt_from_the_requested_history(rig: Rig, make: Maker) -> None:
    first = rig.environments("e1", make)
    send(rig, step_of(), step_of("r", 1, "step", "on"))
    rig.settle(first)
    rig.commit(first)
    source_of(first).kill()

    second = rig.environments("e2", make)
    send(rig, step_of("r", 2, "step", "off", index=1))
    rig.settle(second)
    send(rig, step_of("r", 2, "step", "off", index=1, tries=1, history=("on",)))
    rig.settle(second)

    assert answers(rig)["r", 2, 0].code == "history_needed"
    assert answers(rig)["r", 2, 1].text == "on,off"


def test_sessions_close_with_their_partition(make: Maker) -> None:
    rig = Rig(partitions=2)
    first = rig.environments("e1", make)
    for partition in (0, 1):
        rig.write(rig.topics.steps, f"r{partition}", step_of(f"r{partition}"), partition)
    rig.settle(first)
    sessions = role_of(first).threads.shared[0].sessions
    assert len(sessions) == 2

    second = rig.environments("e2", make)
    rig.settle(first, second)

    assert len(sessions) == 1


def test_an_idle_session_lapses_and_is_rebuilt_on_demand(rig: Rig, make: Maker) -> None:
    loop = rig.environments("e1", make, times=SessionTimes(lease_s=1e-9))
    send(rig, step_of(), step_of(position=1, kind="step", action="a"))
    rig.settle(loop)
    until(loop, lambda: role_of(loop).counts["lapsed"] == 1)
    assert len(role_of(loop).threads.shared[0].sessions) == 0

    send(rig, step_of(position=2, kind="step", action="b", index=1, history=("a",)))
    rig.settle(loop)

    assert answers(rig)["r", 2, 0].text == "a,b"
    assert make.made == 2


def test_a_close_gets_no_answer(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    reset = step_of()
    send(rig, reset, replace(reset, kind="close"), step_of("r", 1, "step", "on"))

    rig.settle(loop)
    rig.commit(loop)

    assert answers(rig)["r", 1, 0].code == "history_needed"
    assert len(rig.log.all(rig.topics.events)) == 2
    assert rig.committed("t.environments", rig.topics.steps) == 3


def test_a_finished_episode_closes_its_session(rig: Rig, make: Maker) -> None:
    loop = rig.environments(make=make)
    send(rig, step_of(), end := step_of("r", 1, "step", "end"))
    rig.settle(loop)

    send(rig, end)
    rig.settle(loop)

    assert len(role_of(loop).threads.shared[0].sessions) == 0
    assert [e.body.terminated for e in rig.read(rig.topics.events, Event)] == [False, True, True]


def test_an_unknown_environment_fails_its_step(rig: Rig) -> None:
    loop = rig.environments()

    send(rig, replace(step_of(), environment="absent"))
    rig.settle(loop)

    failed = answers(rig)["r", 0, 0]
    assert (failed.code, failed.retriable) == ("unknown_environment", False)


def test_an_oversized_observation_fails_its_step(rig: Rig, gate: threading.Event) -> None:
    class Loud(Parrot):
        def open(self, seed: int) -> Observation:
            return Observation("x" * 1_100_000)

    loop = rig.environments(make=lambda name, config: Loud(gate))
    send(rig, step_of())
    rig.settle(loop)
    rig.commit(loop)

    assert answers(rig)["r", 0, 0].code == "too_large"
    assert rig.committed("t.environments", rig.topics.steps) == 1


def test_a_gymnasium_frozen_lake_episode_is_solved(rig: Rig) -> None:
    config = json.dumps({"id": "FrozenLake-v1", "kwargs": {"is_slippery": False},
                         "actions": ["L", "D", "R", "U"]})  # fmt: skip
    loop = rig.environments(threads=0)
    lake = {"environment_config": config}
    reset = replace(step_of(**lake), environment="gymnasium")
    way = [
        replace(step_of("r", n + 1, "step", action, index=n, **lake), environment="gymnasium")
        for n, action in enumerate("DDRDRR")
    ]

    send(rig, reset, *way)
    rig.settle(loop)

    last = answers(rig)["r", 6, 0]
    assert isinstance(last, EnvironmentStepped)
    assert (last.reward, last.terminated) == (1.0, True)
