"""Boxes started ahead and lent: each is lent once, none is left, borrowers are served in order."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.sandbox.boxes.box import Box, BoxLimits, Spec
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.local import LocalDriver
from rollcall.sandbox.boxes.pool import BoxPool
from rollcall.sandbox.process_supervisor import ProcessSupervisor
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Instance
from tests.support.odd_driver import OddBox, OddDriver
from tests.support.tiers import examples

PLAIN = Spec(image="a")
SMALL = Spec(image="a", limits=BoxLimits(processes=8))
OWN = Spec(image="a", env={"WHO": "me"})
ME = "r", 1
SOON_S = 20.0


class Desk:
    """A pool of fake boxes, and all its reports."""

    def __init__(self, directory: Path, **how: Any) -> None:
        self.driver = OddDriver()
        self.leases = Leases(directory, "worker")
        self.told: list[Instance] = []
        self.pool = BoxPool(self.driver, self.leases, self.told.append, **how)

    async def lend(self, spec: Spec = PLAIN, mode: Any = "persistent") -> OddBox:
        async with asyncio.timeout(SOON_S):
            return cast(OddBox, await self.pool.lend(spec, ME, mode))

    async def back(self, box: OddBox) -> None:
        await self.pool.give_back(cast(Box, box))

    def kinds(self) -> Counter[str]:
        return Counter(each.kind for each in self.told)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not true():
                await asyncio.sleep(0)


@pytest.fixture
def live(tmp_path: Path) -> Callable[..., None]:
    """Run a story with its own pool, and check at the end that no box is left."""

    def run(story: Callable[[Desk], Coroutine[Any, Any, None]], **how: Any) -> None:
        async def whole() -> None:
            desk = Desk(tmp_path / "leases", **how)
            try:
                await story(desk)
            finally:
                await desk.pool.close()
                desk.leases.close()
            assert desk.driver.there == {}
            assert list(desk.leases.all()) == []
            assert desk.leases.held == {}

        asyncio.run(whole())

    return run


def test_pool_starts_another_box_after_lending_one(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        first = await desk.lend()
        await desk.until(lambda: desk.kinds()["ready"] == 2)
        second = await desk.lend()

        assert (first.number, second.number) == (0, 1)
        lent = [each for each in desk.told if each.kind == "lent"]
        assert [each.box_id for each in lent] == [first.ident, second.ident]
        assert lent[0] == Instance(
            first.ident, "", "lent", "", "odd", "a", "persistent", "r", 1, "", 0.0
        )

    live(story)


def test_used_box_is_never_lent_again(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        seen = []
        for _ in range(5):
            box = await desk.lend()
            seen.append(box.number)
            await desk.back(box)
            await desk.back(box)

            assert box.closes == 1
            assert box.ident not in desk.driver.there
        assert len(set(seen)) == 5

    live(story)


def test_warm_boxes_match_peak_demand_up_to_the_limit(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        boxes = [await desk.lend() for _ in range(5)]
        await desk.until(lambda: len(desk.driver.there) == 5 + 3)
        for box in boxes:
            await desk.back(box)
        await asyncio.sleep(0.01)

        assert len(desk.driver.there) == 3
        assert desk.driver.most_starting <= 2

    live(story, warm=3)


@pytest.mark.parametrize("warm", [0, 4])
def test_ephemeral_or_custom_box_is_started_on_demand(live: Callable[..., None], warm: int) -> None:
    async def story(desk: Desk) -> None:
        await desk.back(await desk.lend(mode="ephemeral"))
        await desk.back(await desk.lend(OWN))

        assert desk.driver.opened == [PLAIN, OWN]
        assert desk.driver.there == {}

    live(story, warm=warm)


def test_box_with_different_limits_is_started_separately(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        await desk.lend(PLAIN)
        await desk.until(lambda: desk.kinds()["ready"] == 2)
        other = await desk.lend(SMALL)

        assert desk.driver.opened[other.number] == SMALL

    live(story)


def test_borrowers_are_served_in_order_before_warm_starts(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.gate = asyncio.Event()
        served: list[int] = []

        async def borrow(number: int, spec: Spec) -> None:
            await desk.lend(spec)
            served.append(number)

        specs = [PLAIN, SMALL, OWN, PLAIN, SMALL, OWN]
        async with asyncio.TaskGroup() as group:
            for number, spec in enumerate(specs):
                group.create_task(borrow(number, spec))
            await desk.until(lambda: desk.driver.starting == 2)
            desk.driver.gate.set()

        assert served == sorted(served)
        assert desk.driver.opened[:6] == specs
        assert desk.driver.most_starting == 2

    live(story)


def test_failed_start_is_reported_to_the_longest_waiting_borrower(
    live: Callable[..., None],
) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.failing = {0}
        with pytest.raises(WorkFailed, match="box 0 does not start"):
            await desk.lend()
        box = await desk.lend()

        assert box.number == 1
        [failed] = [each for each in desk.told if each.kind == "failed"]
        assert failed.reason == "box 0 does not start"

    live(story)


def test_long_start_failure_reason_keeps_its_end(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.failing = {0}
        desk.driver.why = f"begin {'x' * 900} end"
        with pytest.raises(WorkFailed, match=r" end$"):
            await desk.lend()

        [failed] = [each for each in desk.told if each.kind == "failed"]
        assert failed.reason.startswith("begin ")
        assert failed.reason.endswith(" end")
        assert len(failed.reason) == 500

    live(story)


def test_failed_warm_start_is_not_retried_immediately(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.failing, desk.driver.dead_on_arrival = {1}, {3}
        await desk.lend()
        await desk.until(lambda: desk.kinds()["failed"] == 1)
        await asyncio.sleep(0.01)
        assert len(desk.driver.opened) == 2

        box = await desk.lend()
        await desk.until(lambda: desk.kinds()["failed"] == 2)

        assert box.number == 2
        assert len(desk.driver.opened) == 4

    live(story, warm=1)


def test_dead_warm_box_is_not_lent(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        await desk.lend()
        await desk.until(lambda: desk.kinds()["ready"] == 2)
        next(box for box in desk.driver.there.values() if box.number == 1).alive = False

        box = await desk.lend()

        assert box.alive
        assert box.number == 2

    live(story, stale_s=0.0)


def test_hanging_start_times_out_and_does_not_block_later_starts(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.gate = asyncio.Event()
        with pytest.raises(WorkFailed, match="did not start within") as failed:
            await desk.lend()
        desk.driver.gate = None

        assert failed.value.retriable
        assert (await desk.lend()).alive

    live(story, start_s=0.02)


def test_cancelled_borrowers_do_not_take_a_box_from_others(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.gate = asyncio.Event()
        gone = [asyncio.create_task(desk.lend(spec)) for spec in (PLAIN, OWN)]
        stays = asyncio.create_task(desk.lend())
        await desk.until(lambda: desk.driver.starting == 2)
        for task in gone:
            task.cancel()
        desk.driver.gate.set()

        assert (await stays).number == 0

    live(story)


def test_box_that_fails_to_close_is_removed_by_name(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        desk.driver.clinging = {0}
        box = await desk.lend(mode="ephemeral")
        await desk.back(box)

        assert desk.driver.removed == [box.ident]
        assert desk.told[-1].kind == "removed"

    live(story, remove_again_s=(0.0, 0.0))


def test_unremovable_box_is_left_to_lease_expiry(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Desk(tmp_path, remove_again_s=(0.0, 0.0))
        desk.driver.clinging, desk.driver.stuck = {0}, True
        box = await desk.lend(mode="ephemeral")
        await desk.back(box)
        desk.leases.close()

        assert desk.leases.held == {}
        assert [lease.ident for lease in desk.leases.all()] == [box.ident]
        assert desk.told[-1].kind == "failed"

    asyncio.run(story())


def test_unused_warm_boxes_are_closed(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        await desk.back(await desk.lend())
        await desk.until(lambda: desk.kinds()["ready"] == 2)

        await desk.until(lambda: desk.driver.there == {})

    live(story, keep_s=0.02)


def test_no_box_is_started_without_a_lease(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "leases").write_text("no directory")
        desk = Desk(tmp_path / "leases")
        with pytest.raises(WorkFailed, match="leases of boxes cannot be written") as failed:
            await desk.lend()

        assert failed.value.retriable
        assert desk.driver.opened == []
        await desk.pool.close()

    asyncio.run(story())


def test_closed_pool_lends_and_keeps_no_boxes(live: Callable[..., None]) -> None:
    async def story(desk: Desk) -> None:
        await desk.lend()
        desk.driver.gate = asyncio.Event()
        waits = asyncio.create_task(desk.lend(OWN))
        await desk.until(lambda: desk.driver.starting == 2)
        await desk.pool.close()
        await desk.pool.close()

        with pytest.raises(asyncio.CancelledError):
            await waits
        with pytest.raises(WorkFailed, match="this worker leaves"):
            await desk.lend()

    live(story)


ACTS = st.tuples(st.sampled_from(["lend", "own", "cold", "back", "cancel", "kill", "turn"]),
                 st.integers(0, 9))  # fmt: skip


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    acts=st.lists(ACTS, max_size=40),
    failing=st.sets(st.integers(0, 12), max_size=4),
    dead=st.sets(st.integers(0, 12), max_size=4),
)
def test_no_box_is_lent_twice_or_left_after_random_events(
    tmp_path_factory: pytest.TempPathFactory,
    acts: list[tuple[str, int]],
    failing: set[int],
    dead: set[int],
) -> None:
    async def story() -> None:
        desk = Desk(tmp_path_factory.mktemp("desk"), warm=2, stale_s=0.0)
        desk.driver.failing, desk.driver.dead_on_arrival = failing, dead
        tasks: list[asyncio.Task[OddBox]] = []
        for act, number in acts:
            spec = {"own": OWN, "lend": (PLAIN, SMALL)[number % 2]}.get(act, PLAIN)
            if act in ("lend", "own", "cold"):
                mode = "ephemeral" if act == "cold" else "persistent"
                tasks.append(asyncio.create_task(desk.lend(spec, mode)))
            elif act == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif act == "kill" and desk.driver.there:
                list(desk.driver.there.values())[number % len(desk.driver.there)].alive = False
            elif act == "back" and tasks:
                task = tasks[number % len(tasks)]
                if task.done() and not task.cancelled() and not task.exception():
                    await desk.back(task.result())
            else:
                for _ in range(number):
                    await asyncio.sleep(0)
            assert desk.driver.starting <= 2
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        lent = [box.ident for box in outcomes if isinstance(box, OddBox)]
        assert len(set(lent)) == len(lent)
        await desk.pool.close()
        desk.leases.close()
        assert desk.driver.there == {}
        assert list(desk.leases.all()) == []

    asyncio.run(story())


def test_local_boxes_are_separate_and_removed_on_close(tmp_path: Path) -> None:
    async def story() -> None:
        driver, leases = LocalDriver(), Leases(tmp_path, "worker")
        pool = BoxPool(driver, leases, warm=1)
        first = await pool.lend(Spec(), ME)
        await first.write("note", b"mine")
        second = await pool.lend(Spec(), ME)

        assert (await first.run(["cat", "note"])).output == "mine"
        assert (await second.run(["ls"])).output == ""
        assert {first.ident, second.ident} <= set(await driver.found())
        await pool.close()
        leases.close()
        assert not [ident for ident in await driver.found() if leases.is_of_here(ident)]

    asyncio.run(story())


def test_process_supervisor_is_reused_between_boxes_and_ends_with_the_pool(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        leases = Leases(tmp_path, "worker")
        pool = BoxPool(LocalDriver(), leases)

        async def supervisor_after_a_box() -> ProcessSupervisor:
            await pool.give_back(await pool.lend(Spec(), ME, "ephemeral"))
            supervisor = ProcessSupervisor.borrow()
            await supervisor.give_back()
            return supervisor

        first, second = await supervisor_after_a_box(), await supervisor_after_a_box()
        assert first is second
        assert first.alive
        os.kill(first._process.pid, signal.SIGKILL)
        async with asyncio.timeout(SOON_S):
            while first.alive:
                await asyncio.sleep(0.01)

        another = await supervisor_after_a_box()
        assert another is not first
        assert another.alive
        await pool.close()
        assert (another.alive, first.borrowers, another.borrowers) == (False, 0, 0)
        leases.close()

    asyncio.run(story())
