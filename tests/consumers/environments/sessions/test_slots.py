"""Slots of a worker: none is lost or dealt twice; first come, first served."""

import asyncio
import threading
from collections import Counter, deque
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollcall.consumers.environments.sessions.async_sessions import AsyncSessions
from rollcall.consumers.environments.sessions.session_step import SessionStep, SessionTimes
from rollcall.consumers.environments.sessions.slots import Slots
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.environment import EnvironmentKind, Observation
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import EnvironmentStep, EnvironmentStepped, Instance
from tests.support.tiers import examples

MOST = 2
FAR_S = 1e6
LOST_BY_A_SEMAPHORE = [
    *[("come", 0)] * 4, ("turn", 0), ("go", 0), ("go", 3), ("come", 0), ("go", 7), ("come", 0),
]  # fmt: skip


class Line:
    """Waiters for a slot in order of arrival; each holds its slot until it is cancelled."""

    def __init__(self, most: int) -> None:
        self.most, self.slots = most, Slots({"s": most})
        self.line: deque[int] = deque()
        self.holders: dict[int, asyncio.Task[None]] = {}
        self.served: list[int] = []

    async def hold(self, number: int) -> None:
        self.line.append(number)
        try:
            await self.slots.take(("s",))
        except asyncio.CancelledError:
            self.line.remove(number)
            raise
        ahead = [self.holders[other] for other in self.line if other < number]
        let_in = sum(not other.cancelling() for other in ahead)  # and have not reached it yet
        assert let_in + self.held() < self.most, "first come, first served"
        self.line.remove(number)
        self.served.append(number)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.slots.give(("s",))

    def come(self, number: int) -> None:
        self.holders[number] = asyncio.create_task(self.hold(number))

    def held(self) -> int:
        return sum(n in self.served and not task.done() for n, task in self.holders.items())


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["come", "go", "turn"]), st.integers(0, 9)), max_size=60),
)
@example(2, LOST_BY_A_SEMAPHORE)
def test_slots_are_dealt_in_order_and_survive_cancelled_waiters(
    most: int, acts: list[tuple[str, int]]
) -> None:
    async def live() -> None:
        line = Line(most)
        for number, (act, other) in enumerate(acts):
            if act == "come":
                line.come(number)
            elif act == "go" and line.holders:
                list(line.holders.values())[other % len(line.holders)].cancel()
            else:
                await asyncio.sleep(0)
            assert line.held() <= most
        while True:
            for _ in range(5):
                await asyncio.sleep(0)
            waiting = [task for task in line.holders.values() if not task.done()]
            if not waiting:
                break
            assert min(most, len(waiting)) == line.held(), "nobody waits while a slot is free"
            waiting[0].cancel()
            with suppress(asyncio.CancelledError):
                await waiting[0]
        assert line.slots.waiting == 0
        for _ in range(most):
            await asyncio.wait_for(line.slots.take(("s",)), 5)

    asyncio.run(live())


def test_an_unconfigured_slot_is_refused_with_the_setting_to_write() -> None:
    with pytest.raises(WorkFailed, match="put gpu = 64, say, into environments") as failed:
        asyncio.run(Slots({"hosted": 1}).take(("gpu",)))

    assert failed.value.code == "bad_config"


class Holder:
    """Counts how many of its kind are open."""

    replayable = True

    def __init__(self, world: "World") -> None:
        self.world = world
        self.held = False

    async def open(self, seed: int) -> Observation:
        assert not self.held
        self.world.held += 1
        self.held = True
        await asyncio.sleep(0)
        return Observation("")

    async def step(self, action: str) -> Observation:
        await asyncio.sleep(0)
        if action == "boom":
            raise RuntimeError(action)
        if action == "wait":
            await asyncio.get_running_loop().create_future()
        return Observation("", terminated=action == "end")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.world.held -= self.held
        self.held = False


class World:
    """A table of sessions that take slots, spoken to as its worker would."""

    def __init__(self) -> None:
        self.held = 0
        self.asked = 0
        self.attempts: Counter[int] = Counter()
        self.answers: dict[bytes, Any] = {}
        self.lock = threading.Lock()
        self.notes: list[Instance] = []
        self.table = AsyncSessions(
            lambda step, body, record: self.answers.update({step.command_id: body}),
            lambda step: None,
            lambda: None,
            loop_thread=EventLoopThread(threaded=False),
            make=lambda name, config, place: Holder(self),
            kind_of=lambda name: EnvironmentKind(waits=True, slots=("s",), replayable=True),
            slots={"s": MOST},
            times=SessionTimes(lease_s=FAR_S),
            counts=Counter(),
            note=self.notes.append,
        )

    def ask(self, rollout: int, kind: str, action: str = "", *, rebuild: bool = False) -> bytes:
        """Send a command; return its id."""
        self.asked += 1
        place = f"r{rollout}", 1 + self.attempts[rollout], self.asked, 0
        step = EnvironmentStep(
            *place, command_id(*place), b"", 0, 0, kind, "holder", action=action,
            index=1 if rebuild else 0, history=("a",) if rebuild else None, timeout_s=FAR_S,
        )  # fmt: skip
        record = Record("steps", rollout % 2, self.asked, b"", b"", 0)
        self.table.dispatch([SessionStep(record, step, self.lock)])
        return step.command_id

    def act(self, act: str, rollout: int) -> None:
        match act:
            case "reset" | "close":
                self.ask(rollout, act)
            case "newer":
                self.attempts[rollout] += 1
                self.ask(rollout, "reset")
            case "rebuild":
                self.ask(rollout, "step", "b", rebuild=True)
            case "lapse":
                self.table._everywhere(lambda session: session.idle_s(FAR_S * 2) > FAR_S)
            case "drop":
                self.table.drop(rollout % 2)
            case "turn":
                self.turn()
            case _:
                self.ask(rollout, "step", act)

    def turn(self) -> None:
        self.table.loop_thread.turn(busy=False)

    def settle(self) -> None:
        for _ in range(20):
            self.turn()


ACTS = ["reset", "reset", "a", "end", "boom", "wait", "close", "rebuild", "newer", "lapse", "drop"]


@given(st.lists(st.tuples(st.sampled_from([*ACTS, *["turn"] * 4]), st.integers(0, 5)), max_size=40))
def test_no_slot_is_exceeded_or_lost_in_any_session_history(
    acts: list[tuple[str, int]],
) -> None:
    world = World()
    for act, rollout in acts:
        world.act(act, rollout)
        assert world.held <= MOST
    for partition in (0, 1):
        world.table.drop(partition)
    world.settle()

    assert (world.held, world.table.slots.waiting, world.table.rollouts) == (0, 0, {})
    assert world.table.unfinished() == 0
    ids = [world.ask(100 + number, "reset") for number in range(MOST + 1)]
    world.settle()
    assert [isinstance(world.answers.get(each), EnvironmentStepped) for each in ids] == [
        *[True] * MOST,
        False,
    ]
    assert world.table.unfinished() == 0, "who stands in line has not begun"
    world.table.close()
    assert world.held == 0


@pytest.mark.parametrize("ends", ["close", "end", "boom", "lapse", "drop", "newer"])
def test_a_freed_slot_goes_to_the_first_in_line(ends: str) -> None:
    world = World()
    for rollout in (0, 2):
        world.ask(rollout, "reset")
    first, second = world.ask(1, "reset"), world.ask(3, "reset")
    world.settle()
    assert first not in world.answers

    world.act(ends, 0)  # a newer attempt gives its slot back and waits behind the others
    world.settle()

    assert isinstance(world.answers[first], EnvironmentStepped)
    assert (second in world.answers) == (ends in ("lapse", "drop"))
    world.table.close()


def test_a_reset_that_waits_for_a_slot_can_miss_its_deadline() -> None:
    world = World()
    for rollout in range(MOST):
        world.ask(rollout, "reset")
    place = "late", 1, 0, 0
    step = EnvironmentStep(*place, b"late", b"", 0, 0, "reset", "holder", timeout_s=0.01)
    world.table.dispatch([SessionStep(Record("steps", 0, 0, b"", b"", 0), step, world.lock)])
    while b"late" not in world.answers:
        world.table.loop_thread.turn(busy=True)

    failed = world.answers[b"late"]
    assert (failed.code, failed.retriable) == ("deadline", True)
    assert "no slot 's' was free within 0.01 s" in failed.message
    world.act("close", 0)
    world.settle()
    assert world.held == MOST - 1
    world.table.close()


def test_a_step_without_its_history_fails_without_waiting_for_a_slot() -> None:
    world = World()
    for rollout in range(MOST):
        world.ask(rollout, "reset")
    asked = world.ask(7, "step", "a")
    rebuilt = world.ask(8, "step", "b", rebuild=True)
    world.settle()

    assert world.answers[asked].code == "history_needed"
    assert rebuilt not in world.answers
    world.act("close", 0)
    world.settle()
    assert isinstance(world.answers[rebuilt], EnvironmentStepped)
    world.table.close()


def test_an_answer_reports_its_queueing_time_and_its_execution_time() -> None:
    world = World()
    *_, first, third = (world.ask(rollout, "reset") for rollout in range(MOST + 1))
    world.settle()
    world.ask(0, "close")
    world.settle()

    quick, late = world.answers[first], world.answers[third]

    assert quick.took_s > 0
    assert late.took_s > 0
    assert late.waited_s > quick.waited_s
    assert late.waited_s + late.took_s < 60
    world.table.close()


def test_slot_waits_are_logged_at_their_start_and_end() -> None:
    world = World()
    for rollout in range(MOST + 2):
        world.ask(rollout, "reset")
    world.settle()
    waiting = list(world.notes)
    world.ask(0, "close")
    world.ask(MOST + 1, "close")
    world.settle()

    assert [(each.kind, each.rollout_id, each.reason) for each in waiting] == [
        ("waiting", f"r{MOST}", "s"),
        ("waiting", f"r{MOST + 1}", "s"),
    ]
    over = {each.box_id: each.kind for each in world.notes[len(waiting) :]}
    assert over == {waiting[0].box_id: "lent", waiting[1].box_id: "failed"}
    world.table.close()


def holds(slots: Slots, *wanted: tuple[str, ...]) -> list[bool]:
    """For each of these requests, in order, if it got its slots."""

    async def live() -> list[bool]:
        tasks = [asyncio.create_task(slots.take(names)) for names in wanted]
        for _ in range(4):
            await asyncio.sleep(0)
        got = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.waiting == 0
        return got

    return asyncio.run(live())


BOTH = "box", "hosted"


def test_slots_of_two_classes_are_taken_atomically() -> None:
    one_each = {"box": 1, "hosted": 1}

    assert holds(Slots(one_each), BOTH, BOTH) == [True, False]
    assert holds(Slots(one_each), ("box",), BOTH, ("hosted",)) == [True, False, False]
    assert holds(Slots({"box": 1, "hosted": 2}), ("box",), BOTH, ("hosted",)) == [
        True,
        False,
        False,
    ]
    assert holds(Slots({**one_each, "gpu": 1}), ("box",), BOTH, ("gpu",)) == [True, False, True]
    assert holds(Slots(one_each), ("box", "box"), ("hosted",)) == [True, True]


async def stood(slots: Slots, name: str) -> list[str]:
    """The class if no slot of it is free; the waiter then leaves."""
    told: list[str] = []
    taking = asyncio.create_task(slots.take((name,), lambda: told.append(name)))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return told


def test_a_waiter_whose_notification_fails_leaves_the_line() -> None:
    async def live() -> None:
        slots = Slots({"box": 1})
        await slots.take(("box", "box"))
        with pytest.raises(ZeroDivisionError):
            await slots.take(("box",), lambda: print(1 // 0))
        assert slots.waiting == 0
        slots.give(("box",))
        assert await stood(slots, "box") == []

    asyncio.run(live())


NEEDS = st.sampled_from([("box",), ("hosted",), BOTH, ("hosted", "box")])


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(NEEDS, st.sampled_from(["come", "go", "turn"]), st.integers(0, 9)), max_size=50
    )
)
def test_slots_of_two_classes_stay_exact_under_any_arrivals(
    acts: list[tuple[tuple[str, ...], str, int]],
) -> None:
    most = {"box": 1, "hosted": 2}

    async def live() -> None:
        slots, held = Slots(most), Counter[str]()
        tasks: list[asyncio.Task[None]] = []

        async def hold(names: tuple[str, ...]) -> None:
            await slots.take(names)
            held.update(names)
            assert all(held[name] <= most[name] for name in most)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                held.subtract(names)
                slots.give(names)

        for names, act, number in acts:
            if act == "come":
                tasks.append(asyncio.create_task(hold(names)))
            elif act == "go" and tasks:
                tasks[number % len(tasks)].cancel()
            else:
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.waiting == 0
        for name, number in most.items():
            for _ in range(number):
                assert await stood(slots, name) == [], "none is lost"
            assert await stood(slots, name) == [name], "none is dealt twice"

    asyncio.run(live())


def test_a_line_of_thousands_is_served_in_linear_time() -> None:
    """In quadratic time this would take a minute."""
    many = 10_000

    async def served_in_order() -> list[int]:
        slots, served = Slots({"s": 2, "other": 9}), list[int]()

        async def one(number: int) -> None:
            await slots.take(("s",))
            served.append(number)
            await asyncio.sleep(0)
            slots.give(("s",))

        await asyncio.gather(*map(one, range(many)))
        return served

    async def whole() -> list[int]:
        async with asyncio.timeout(30):
            return await served_in_order()

    assert asyncio.run(whole()) == list(range(many))
