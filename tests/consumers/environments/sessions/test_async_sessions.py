"""Async environments: each session is a task, all of them on one thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollcall.consumers.environments.sessions.session_step import SessionStep, SessionTimes
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dispatcher import POLL_RECORDS
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.consumers.loop.loop import Loop
from rollcall.sandbox.environment import EnvironmentKind, Observation
from rollcall.schemas.errors import EventLoopBlocked
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped, Event
from tests.support.rig import Rig, role_of, source_of
from tests.support.waiting import give_way

FAR_MS = 2_000_000_000_000
PATIENCE_S = 20.0
WAITS = EnvironmentKind(waits=True)
SLOT = EnvironmentKind(waits=True, slots=("s",))


class Sitter:
    """Repeats its actions in one task; some actions make it wait or misbehave."""

    replayable = True

    def __init__(self, sitters: "Sitters") -> None:
        self.sitters = sitters
        self.said: list[str] = []
        self.tasks: set[Any] = set()
        self.threads: set[int] = set()
        self.waits = False
        self.cancelled = 0
        self.closed = 0

    async def open(self, seed: int) -> Observation:
        self.note()
        if seed == 13:
            await self.wait()
        return Observation(f"seed {seed}")

    async def step(self, action: str) -> Observation:
        self.note()
        match action:
            case "wait":
                await self.wait()
            case "cling":
                await self.cling()
            case "block":
                self.sitters.gate.wait()
            case "boom":
                raise RuntimeError(action)
            case "exit":
                raise SystemExit(3)
            case "give up":
                raise asyncio.CancelledError
            case "end badly":
                self.task = asyncio.create_task(self.exit())
        self.said.append(action)
        return Observation(",".join(self.said), 1.0, action == "end")

    async def wait(self) -> None:
        self.waits = True
        try:
            await self.sitters.gate_opens()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waits = False

    async def cling(self) -> None:
        while not self.sitters.gate.is_set():
            try:
                await self.wait()
            except asyncio.CancelledError:
                continue

    async def exit(self) -> None:
        raise SystemExit(4)

    def note(self) -> None:
        self.tasks.add(asyncio.current_task())
        self.threads.add(threading.get_ident())

    async def close(self) -> None:
        self.note()
        self.closed += 1


class Frail(Sitter):
    """Cannot be rebuilt."""

    replayable = False


class Sitters:
    """Makes sitters for one test; all waiting ones continue when the test opens the gate."""

    def __init__(self) -> None:
        self.made: list[Sitter] = []
        self.kind: type[Sitter] = Sitter
        self.gate = threading.Event()
        self.at_gate: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def gate_opens(self) -> None:
        opened = asyncio.Event()
        self.at_gate.append((asyncio.get_running_loop(), opened))
        if not self.gate.is_set():
            await opened.wait()

    def go_on(self) -> None:
        """Open the gate in every event loop."""
        self.gate.set()
        for loop_thread, opened in self.at_gate:
            if not loop_thread.is_closed():
                loop_thread.call_soon_threadsafe(opened.set)

    def __call__(self, name: str, config: str) -> Sitter:
        self.made.append(self.kind(self))
        return self.made[-1]

    def waiting(self) -> int:
        return sum(sitter.waits for sitter in self.made)


@pytest.fixture
def sitters() -> Iterator[Sitters]:
    sitters = Sitters()
    yield sitters
    sitters.go_on()


@pytest.fixture(params=[0, 1], ids=["turned", "threaded"])
def threads(request: pytest.FixtureRequest) -> int:
    return request.param


def step_of(
    rollout_id: str = "r",
    position: int = 0,
    kind: str = "reset",
    action: str = "",
    *,
    attempt: int = 1,
    index: int = 0,
    tries: int = 0,
    **fields: Any,
) -> EnvironmentStep:
    place = rollout_id, attempt, position, tries
    given = {"not_after_ms": FAR_MS, "timeout_s": 30.0} | fields
    not_after_ms = given.pop("not_after_ms")
    return EnvironmentStep(
        *place, command_id(*place), b"digest", 0, not_after_ms, kind, "sitter",
        index=index, action=action, **given,
    )  # fmt: skip


def send(rig: Rig, *steps: EnvironmentStep) -> None:
    for step in steps:
        rig.write(rig.topics.steps, step.rollout_id, step, 0)


def answers(rig: Rig) -> dict[tuple[str, int, int], Any]:
    events = rig.read(rig.topics.events, Event)
    return {(e.rollout_id, e.position, e.tries): e.body for e in events}


def attempts(rig: Rig) -> dict[tuple[int, int], Any]:
    """Answers by attempt and position."""
    return {(e.attempt, e.position): e.body for e in rig.read(rig.topics.events, Event)}


def until(loop: Loop, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        loop.turn(0.0)


def worker(rig: Rig, sitters: Sitters, **options: Any) -> Loop:
    return rig.environments(make=sitters, **({"kind": WAITS, "threads": 1} | options))


def test_each_session_does_its_steps_in_order_in_one_task(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    for name in "abc":
        send(rig, step_of(name, seed=4))
        send(rig, *(step_of(name, n + 1, "step", f"{name}{n}", index=n) for n in range(3)))
        send(rig, step_of(name, 9, "close"))

    until(loop, lambda: len(answers(rig)) == 12 and not loop.role.in_flight())
    until(loop, lambda: sum(sitter.closed for sitter in sitters.made) == 3)
    rig.commit(loop)

    assert answers(rig)["b", 0, 0].text == "seed 4"
    assert answers(rig)["b", 3, 0].text == "b0,b1,b2"
    assert [(len(s.tasks), s.closed) for s in sitters.made] == [(1, 1)] * 3
    assert len(set.union(*(s.threads for s in sitters.made))) == 1
    assert rig.committed("t.environments", rig.topics.steps) == 15


def test_hundreds_of_sessions_wait_on_one_thread_and_block_no_other(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    names = [f"r{n}" for n in range(300)]
    send(rig, *(step_of(name, seed=13) for name in names))
    until(loop, lambda: sitters.waiting() == 300)

    send(rig, step_of("quick"))
    until(loop, lambda: ("quick", 0, 0) in answers(rig))
    assert (len(answers(rig)), loop.role.in_flight()) == (1, 300)
    sitters.go_on()
    until(loop, lambda: len(answers(rig)) == 301)

    assert len(set.union(*(s.threads for s in sitters.made))) == 1


def test_an_overdue_step_is_cancelled_and_its_session_rebuilt(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(), step_of("r", 1, "step", "a"))
    send(rig, step_of("r", 2, "step", "wait", index=1, timeout_s=0.05))
    until(loop, lambda: ("r", 2, 0) in answers(rig))

    late = answers(rig)["r", 2, 0]
    assert (late.code, late.retriable) == ("deadline", True)
    assert "0.05 s" in late.message
    until(loop, lambda: sitters.made[0].closed == 1)
    send(rig, step_of("r", 2, "step", "b", index=1, tries=1))
    until(loop, lambda: ("r", 2, 1) in answers(rig))
    assert answers(rig)["r", 2, 1].code == "history_needed"
    send(rig, step_of("r", 2, "step", "b", index=1, tries=2, history=("a",)))
    until(loop, lambda: ("r", 2, 2) in answers(rig))

    assert answers(rig)["r", 2, 2].text == "a,b"
    assert (sitters.made[0].cancelled, len(sitters.made[0].tasks)) == (1, 1)
    assert role_of(loop).counts["abandoned"] == 0


def test_an_overdue_opening_is_cancelled(rig: Rig, sitters: Sitters, threads: int) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(seed=13, timeout_s=0.05))

    until(loop, lambda: len(answers(rig)) == 1)
    until(loop, lambda: sitters.made[0].closed == 1)

    assert answers(rig)["r", 0, 0].code == "deadline"
    assert len(rig.log.all(rig.topics.events)) == 1


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, float("nan"), float("inf"), 1e300])
def test_an_invalid_timeout_means_none_or_unlimited(
    rig: Rig, sitters: Sitters, timeout_s: float
) -> None:
    loop = worker(rig, sitters)
    send(rig, step_of("odd", seed=13, timeout_s=timeout_s), step_of("other"))
    until(loop, lambda: ("other", 0, 0) in answers(rig))

    if timeout_s > 0:
        sitters.go_on()
    until(loop, lambda: ("odd", 0, 0) in answers(rig))

    assert isinstance(answers(rig)["odd", 0, 0], EnvironmentStepped) == (timeout_s > 0)


def test_an_uncancellable_environment_is_abandoned_and_its_rollout_continues(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads, times=SessionTimes(grace_s=0.05))
    send(rig, step_of(), step_of("r", 1, "step", "cling", timeout_s=0.05))
    send(rig, step_of("r", 1, "step", "a", tries=1), step_of("other"))

    until(loop, lambda: ("r", 1, 1) in answers(rig))

    assert answers(rig)["r", 1, 0].code == "deadline"
    assert answers(rig)["r", 1, 1].code == "history_needed"
    assert answers(rig)["other", 0, 0].text == "seed 0"
    assert not loop.role.in_flight()
    sitters.go_on()
    until(loop, lambda: sitters.made[0].closed == 1)
    assert len(rig.log.all(rig.topics.events)) == 4


@pytest.mark.parametrize("action", ["boom", "exit", "give up"])
def test_a_session_that_raises_fails_its_step_and_closes_alone(
    rig: Rig, sitters: Sitters, threads: int, action: str
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of("bad"), step_of("good"), step_of("bad", 1, "step", action))
    send(rig, step_of("good", 1, "step", "a"), step_of("bad", 1, "step", "a", tries=1))

    until(loop, lambda: len(answers(rig)) == 5)

    failed = answers(rig)["bad", 1, 0]
    assert (failed.code, failed.retriable) == ("raised", False)
    assert answers(rig)["bad", 1, 1].code == "history_needed"
    assert answers(rig)["good", 1, 0].text == "a"
    until(loop, lambda: sorted(sitter.closed for sitter in sitters.made) == [0, 1])


def test_system_exit_in_an_environments_own_task_is_contained(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters)
    send(rig, step_of(), step_of("r", 1, "step", "end badly"))
    until(loop, lambda: len(answers(rig)) == 2)

    send(rig, step_of("other"))
    until(loop, lambda: len(answers(rig)) == 3)

    assert answers(rig)["other", 0, 0].text == "seed 0"


@pytest.mark.parametrize("error", [SystemError, SystemExit])
def test_a_session_task_that_dies_fails_its_step(
    rig: Rig, sitters: Sitters, error: type[BaseException]
) -> None:
    def deadly(name: str, config: str) -> Sitter:
        raise error

    loop = rig.environments(make=deadly, kind=WAITS, threads=1)
    send(rig, step_of(), step_of("next"))

    until(loop, lambda: len(answers(rig)) == 2)

    assert {body.code for body in answers(rig).values()} == {"raised"}
    assert error.__name__ in answers(rig)["r", 0, 0].message


def test_a_close_cancels_openings_and_steps_in_progress(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of("opens", seed=13), step_of("steps"), step_of("steps", 1, "step", "wait"))
    until(loop, lambda: sitters.waiting() == 2)

    send(rig, step_of("opens", 5, "close"), step_of("steps", 5, "close"))
    until(loop, lambda: not loop.role.in_flight())
    until(loop, lambda: sum(sitter.closed for sitter in sitters.made) == 2)
    rig.commit(loop)

    assert [answers(rig)[key].code for key in (("opens", 0, 0), ("steps", 1, 0))] == ["closed"] * 2
    assert role_of(loop).waiting.rollouts == {}
    assert rig.committed("t.environments", rig.topics.steps) == 5


def test_a_close_of_an_unopened_session_does_nothing(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters)
    send(rig, step_of("r", 5, "close"))

    until(loop, lambda: role_of(loop).waiting.given == 1 and not loop.role.in_flight())
    rig.commit(loop)

    assert (sitters.made, answers(rig)) == ([], {})
    assert rig.committed("t.environments", rig.topics.steps) == 1


def test_a_newer_attempt_ends_the_older_one_at_any_stage(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(seed=13), step_of(position=1, session="other"))
    until(loop, lambda: sitters.waiting() == 1 and (1, 1) in attempts(rig))

    send(rig, step_of(attempt=2))
    until(loop, lambda: (2, 0) in attempts(rig))
    until(loop, lambda: sum(sitter.closed for sitter in sitters.made) == 2)
    send(rig, step_of(position=2, tries=1), step_of(position=3, kind="close"))
    until(loop, lambda: (1, 2) in attempts(rig) and not loop.role.in_flight())

    assert attempts(rig)[1, 0].code == attempts(rig)[1, 2].code == "stale_attempt"
    assert attempts(rig)[2, 0].text == "seed 0"
    assert len(sitters.made) == 3
    assert [each.attempt for each in role_of(loop).waiting.rollouts["r", 0].values()] == [2]


def test_sessions_of_one_rollout_wait_concurrently(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(), step_of(position=1, session="agent"))
    send(rig, step_of("r", 2, "step", "wait"))
    send(rig, step_of("r", 3, "step", "a", session="agent"))

    until(loop, lambda: ("r", 3, 0) in answers(rig))

    assert ("r", 2, 0) not in answers(rig)
    sitters.go_on()
    until(loop, lambda: ("r", 2, 0) in answers(rig))


def test_a_repeated_step_is_answered_from_the_kept_answers(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(), step_of("r", 1, "step", "a"))
    until(loop, lambda: len(answers(rig)) == 2)

    send(rig, step_of("r", 1, "step", "a", tries=1), step_of(), step_of("r", 1, "step", "a"))
    until(loop, lambda: len(rig.log.all(rig.topics.events)) == 5)

    texts = [event.body.text for event in rig.read(rig.topics.events, Event)]
    assert sorted(texts) == ["a", "a", "a", "seed 0", "seed 0"]
    assert (len(sitters.made), sitters.made[0].said) == (1, ["a"])


def test_a_session_that_cannot_be_replayed_is_lost(rig: Rig, sitters: Sitters) -> None:
    sitters.kind = Frail
    loop = worker(rig, sitters)

    send(rig, step_of("r", 1, "step", "b", index=1, history=("a",)))
    until(loop, lambda: len(answers(rig)) == 1)

    assert answers(rig)["r", 1, 0].code == "session_lost"
    assert role_of(loop).waiting.rollouts == {}


def test_a_finished_episode_closes_its_session(rig: Rig, sitters: Sitters, threads: int) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of(), end := step_of("r", 1, "step", "end"))
    until(loop, lambda: len(answers(rig)) == 2 and not loop.role.in_flight())
    until(loop, lambda: role_of(loop).waiting.rollouts == {})

    send(rig, end)
    until(loop, lambda: len(rig.log.all(rig.topics.events)) == 3)

    assert [e.body.terminated for e in rig.read(rig.topics.events, Event)] == [False, True, True]
    until(loop, lambda: sitters.made[0].closed == 1)


def test_an_idle_session_ends_after_its_lease_a_waiting_one_does_not(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads, times=SessionTimes(lease_s=1e-3))
    send(rig, step_of("busy", seed=13), step_of("idle"))

    until(loop, lambda: role_of(loop).counts["lapsed"] == 1)
    until(loop, lambda: [sitter.closed for sitter in sitters.made] == [0, 1])
    sitters.go_on()
    until(loop, lambda: ("busy", 0, 0) in answers(rig))
    until(loop, lambda: role_of(loop).waiting.rollouts == {})
    until(loop, lambda: sum(sitter.closed for sitter in sitters.made) > 1)

    assert [sitter.closed for sitter in sitters.made] == [1, 1]


def test_sessions_close_with_their_partition_at_any_stage(sitters: Sitters, threads: int) -> None:
    rig = Rig(partitions=2)
    loop = worker(rig, sitters, threads=threads)
    for partition, name in ((0, "stays"), (1, "goes"), (1, "waits")):
        step = step_of(name, seed=13 if name == "waits" else 0)
        rig.write(rig.topics.steps, name, step, partition)
    until(loop, lambda: len(answers(rig)) == 2 and sitters.waiting() == 1)

    heir = worker(rig, sitters, name="e2", threads=threads)
    heir.turn(0.0)
    until(loop, lambda: sorted(role_of(loop).waiting.rollouts) == [("stays", 0)])
    until(loop, lambda: not loop.role.in_flight())
    until(heir, lambda: sitters.waiting() == 1)

    until(heir, lambda: sum(sitter.closed for sitter in sitters.made) == 2)
    assert ("waits", 0, 0) not in answers(rig)
    rig.close()


def test_a_session_lost_with_its_worker_is_rebuilt_by_another(rig: Rig, sitters: Sitters) -> None:
    first = worker(rig, sitters, name="e1")
    send(rig, step_of(), step_of("r", 1, "step", "a"))
    until(first, lambda: len(answers(rig)) == 2)
    rig.commit(first)
    source_of(first).kill()

    second = worker(rig, sitters, name="e2")
    send(rig, step_of("r", 2, "step", "b", index=1))
    until(second, lambda: ("r", 2, 0) in answers(rig))
    send(rig, step_of("r", 2, "step", "b", index=1, tries=1, history=("a",)))
    until(second, lambda: ("r", 2, 1) in answers(rig))

    assert answers(rig)["r", 2, 0].code == "history_needed"
    assert answers(rig)["r", 2, 1].text == "a,b"


def test_an_expired_step_is_not_done(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters)
    now_ms = int(rig.clock.now * 1000)
    send(rig, step_of(seed=13), step_of("r", 1, "step", "a", not_after_ms=now_ms + 1000))
    until(loop, lambda: sitters.waiting() == 1)

    rig.clock.pass_by(2.0)
    sitters.go_on()
    until(loop, lambda: len(answers(rig)) == 2)

    assert answers(rig)["r", 1, 0].code == "expired"


def test_a_leaving_worker_closes_all_sessions_and_leaves_their_steps(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    loop = worker(rig, sitters, threads=threads)
    send(rig, step_of("idle"), step_of("opens", seed=13))
    send(rig, step_of("steps"), step_of("steps", 1, "step", "wait"))
    until(loop, lambda: sitters.waiting() == 2 and len(answers(rig)) == 2)

    loop.stop(drain_s=0.0)

    assert [sitter.closed for sitter in sitters.made] == [1, 1, 1]
    assert len(answers(rig)) == 2
    heir = worker(rig, sitters, name="e2", threads=threads)
    until(heir, lambda: sitters.waiting() == 1 and len(answers(rig)) == 3)
    assert answers(rig)["steps", 1, 0].code == "history_needed"


def test_a_leaving_worker_releases_sessions_that_others_can_resume_at_once(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    # Given an idle session, one that is being opened, one at a step, and one that only lives here
    loop = worker(rig, sitters, threads=threads)
    role = role_of(loop)
    send(rig, step_of("idle"), step_of("opens", seed=13))
    send(rig, step_of("steps"), step_of("steps", 1, "step", "wait"))
    until(loop, lambda: sitters.waiting() == 2 and len(answers(rig)) == 2)
    sitters.kind = Frail
    send(rig, step_of("frail"), step_of("frail", 1, "step", "wait"))
    until(loop, lambda: sitters.waiting() == 3 and len(answers(rig)) == 3)

    # When the worker is about to leave, and more steps arrive
    role.leave(patient=False)
    until_ticked(loop, lambda: [sitter.closed for sitter in sitters.made] == [1, 1, 1, 0])
    role.waiting.dispatch(
        [SessionStep(Record("s", 0, 99, b"", b"", 0), step_of("late"), role._lock)]
    )
    until_ticked(loop, lambda: role.in_flight() == 1)

    # Then only the last is waited for; the others' steps are left to the successor
    sitters.go_on()
    until_ticked(loop, lambda: len(answers(rig)) == 4)
    role.leave(patient=False)
    until_ticked(loop, lambda: sitters.made[3].closed == 1)
    loop.stop()
    assert len(sitters.made) == 4
    heir = worker(rig, sitters, name="e2", threads=threads)
    until(heir, lambda: len(answers(rig)) == 6)
    assert answers(rig)["steps", 1, 0].code == "history_needed"
    assert answers(rig)["opens", 0, 0].text == "seed 13"


def test_a_drained_worker_only_finishes_its_running_steps(
    rig: Rig, sitters: Sitters, threads: int
) -> None:
    # Given an idle session, one at a step, and one that waits for a slot
    options: dict[str, Any] = {"kind": SLOT, "slots": {"s": 2}}
    loop = worker(rig, sitters, threads=threads, **options)
    role = role_of(loop)
    send(rig, step_of("idle"), step_of("steps"), step_of("steps", 1, "step", "wait"))
    until(loop, lambda: sitters.waiting() == 1 and len(answers(rig)) == 2)
    send(rig, step_of("line"))
    until(loop, lambda: role.waiting.slots.waiting == 1)

    # When it is drained
    role.leave(patient=True)
    until_ticked(loop, lambda: sitters.made[0].closed == 1)

    # Then it waits for the step, and the slot that became free is not given out
    assert role.in_flight() == 1
    sitters.go_on()
    until_ticked(loop, lambda: len(answers(rig)) == 3)
    assert answers(rig)["steps", 1, 0].text == "wait"
    role.leave(patient=True)
    until_ticked(loop, lambda: sitters.made[1].closed == 1)
    assert len(sitters.made) == 2
    loop.stop(patient=lambda: True)
    heir = worker(rig, sitters, name="e2", threads=threads, **options)
    until(heir, lambda: ("line", 0, 0) in answers(rig))


def until_ticked(loop: Loop, condition: Callable[[], bool]) -> None:
    """As a loop does that takes no more records."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        loop.role.tick()
        give_way()


def test_a_worker_leaves_despite_an_uncancellable_environment(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters, times=SessionTimes(grace_s=0.01))
    send(rig, step_of(), step_of("r", 1, "step", "cling"))
    until(loop, lambda: sitters.waiting() == 1)

    began = time.monotonic()
    role_of(loop).waiting.close(timeout_s=0.1)

    assert time.monotonic() - began < PATIENCE_S
    assert sitters.made[0].closed == 0


def test_a_session_that_blocks_the_event_loop_thread_is_named(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters, loop_thread=EventLoopThread(threaded=True, slow_s=0.05))
    send(rig, step_of("other"), step_of("bad"))
    until(loop, lambda: len(answers(rig)) == 2)
    send(rig, step_of("other", 1, "step", "wait", timeout_s=0.5))
    until(loop, lambda: sitters.waiting() == 1)

    send(rig, step_of("bad", 1, "step", "block", timeout_s=0.1))
    until(loop, lambda: len(answers(rig)) == 4)

    for name in ("bad", "other"):
        failed = answers(rig)[name, 1, 0]
        assert (failed.code, failed.retriable) == ("deadline", True)
        assert "blocked by session 'main' of rollout 'bad'" in failed.message
    sitters.gate.set()
    until(loop, lambda: role_of(loop).loop_thread.blocked_for_s() < 0.05)
    send(rig, step_of("next"))
    until(loop, lambda: ("next", 0, 0) in answers(rig))
    assert len(rig.log.all(rig.topics.events)) == 5


def test_a_worker_whose_event_loop_thread_stays_blocked_names_the_session(
    rig: Rig, sitters: Sitters
) -> None:
    loop = worker(
        rig, sitters, loop_thread=EventLoopThread(threaded=True, slow_s=0.01, wedged_s=0.1)
    )
    send(rig, step_of("bad"), step_of("bad", 1, "step", "block"))

    with pytest.raises(EventLoopBlocked, match=r"of rollout 'bad'.*in wait.*must be awaited"):
        until(loop, lambda: False)


def test_an_error_while_answering_ends_the_worker(rig: Rig, sitters: Sitters) -> None:
    loop = worker(rig, sitters)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    role_of(loop).waiting.give = broken
    send(rig, step_of())

    with pytest.raises(ZeroDivisionError):
        until(loop, lambda: False)


def test_an_async_environment_is_found_by_name_and_given_its_host(rig: Rig, threads: int) -> None:
    from tests.support.patient_environment import Nowhere

    class Here(Nowhere):
        def __init__(self, place: str) -> None:
            self.place = place

    loop = rig.environments(threads=threads, hosts=Here, slots={"patience": 1})
    patient = {"environment": "tests.support.patient_environment:Patient"}
    plain = {"environment": "tests.support.counting_environment:Counting"}
    send(rig, replace(step_of("waits"), **patient), replace(step_of("plain"), **plain))
    send(rig, replace(step_of("waits", 1, "step", "a"), **patient))
    send(rig, replace(step_of("absent"), environment="absent"))
    send(rig, replace(step_of("config"), environment_config='{"host": 1}', **patient))

    until(loop, lambda: len(answers(rig)) == 4)
    send(rig, replace(step_of("waits", 5, "close"), **patient))
    until(loop, lambda: len(answers(rig)) == 5 and not loop.role.in_flight())

    assert answers(rig)["waits", 0, 0].text == "session 'main' of rollout 'waits', attempt 1"
    assert answers(rig)["waits", 1, 0].text == "a"
    assert answers(rig)["plain", 0, 0].text == "0:"
    assert answers(rig)["absent", 0, 0].code == "unknown_environment"
    assert answers(rig)["config", 0, 0].code == "bad_config"


def test_openings_that_wait_for_a_slot_block_no_other_environment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than a partition may have in hand."""
    monkeypatch.setattr("rollcall.consumers.loop.role.SPAN_RECORDS", 20)
    from tests.support.patient_environment import Nowhere

    loop = rig.environments(hosts=lambda place: Nowhere(), slots={"patience": 1})
    patient = {"environment": "tests.support.patient_environment:Patient"}
    plain = {"environment": "tests.support.counting_environment:Counting"}
    for number in range(POLL_RECORDS + 100):
        send(rig, replace(step_of(f"in line {number}"), **patient))
    send(rig, replace(step_of("plain"), **plain))

    until(loop, lambda: ("plain", 0, 0) in answers(rig))

    assert role_of(loop).waiting.slots.waiting == POLL_RECORDS + 99


def test_a_module_that_hangs_on_import_blocks_no_other_environment(
    rig: Rig, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_import.py").write_text(
        "from tests.support.open_gate import GATE\nGATE.wait()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from tests.support.open_gate import GATE

    loop = rig.environments(threads=1)
    hangs = replace(step_of("hangs", timeout_s=0.05), environment="hanging_import:Nothing")
    plain = replace(step_of("plain"), environment="tests.support.counting_environment:Counting")
    send(rig, hangs, plain)
    until(loop, lambda: len(answers(rig)) == 2)
    GATE.set()
    until(loop, lambda: not loop.role.in_flight())

    assert isinstance(answers(rig)["plain", 0, 0], EnvironmentStepped)
    hung = answers(rig)["hangs", 0, 0]
    assert isinstance(hung, CallFailed)
    assert (hung.code, hung.retriable) == ("deadline", True)
    assert "import" in hung.message
