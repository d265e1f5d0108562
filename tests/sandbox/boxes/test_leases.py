"""Leases, and the reaper that uses them to find boxes without a live holder."""

import asyncio
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import IDENT, Spec
from rollcall.sandbox.boxes.box_removal import Reaper
from rollcall.sandbox.boxes.leases import Lease, Leases, LeaseTimes
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Instance
from tests.support.odd_driver import OddDriver

QUICK = LeaseTimes(touch_s=0.01, lapse_s=30.0, reap_s=0.01)


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Yard:
    """A host with one driver and one directory of leases, whose former box holder is gone."""

    def __init__(self, directory: Path) -> None:
        self.clock = Hand()
        self.driver = OddDriver()
        self.directory = directory
        self.gone = self.leases("gone")
        self.told: list[Instance] = []

    def leases(self, owner: str) -> Leases:
        return Leases(self.directory, owner, LeaseTimes(touch_s=3600), self.clock)

    def reaper(self, leases: Leases | None = None) -> Reaper:
        drivers = {"odd": self.driver}
        return Reaper(leases or self.leases("reaper"), lambda: drivers, self.told.append)

    async def leave_box(self, ident: str = "") -> str:
        """Open a box whose owner renews its lease for the last time."""
        ident = ident or self.gone.draw()
        self.gone.take(ident, "odd")
        await self.driver.open(Spec(), ident)
        return ident


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "leases")
    yield made
    made.gone.close()


def reaped(*reapers: Reaper) -> list[int]:
    """The number of boxes that each concurrent reaper removes."""

    async def together() -> list[int]:
        return list(await asyncio.gather(*(reaper.reap() for reaper in reapers)))

    return asyncio.run(together())


def test_reaper_removes_a_box_and_its_expired_lease(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    reaper = yard.reaper()

    yard.clock.now += 30.0
    assert reaped(reaper) == [0]
    yard.clock.now += 0.1
    assert reaped(reaper) == [1]

    assert yard.driver.there == {}
    assert list(yard.gone.all()) == []
    assert reaper.counts == {"reaped": 1}
    reason = "lease of gone lapsed"
    assert yard.told == [Instance(ident, "", "reaped", driver="odd", reason=reason)]
    assert reaped(reaper) == [0]


def test_concurrent_reapers_remove_and_count_each_box_once(yard: Yard) -> None:
    for _ in range(5):
        asyncio.run(yard.leave_box())
    yard.clock.now += 31

    assert sum(reaped(yard.reaper(), yard.reaper())) == 5

    assert yard.driver.there == {}
    assert len(yard.told) == 5


def test_reaper_never_removes_boxes_held_by_its_own_worker(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 3600

    assert reaped(yard.reaper(yard.gone)) == [0]
    assert len(yard.driver.there) == 1


def test_reaper_ignores_boxes_of_other_lease_directories(yard: Yard, tmp_path: Path) -> None:
    others = Leases(tmp_path / "elsewhere", "other", clock=yard.clock)

    async def leave() -> None:
        await yard.leave_box()
        await yard.driver.open(Spec(), others.draw())
        await yard.driver.open(Spec(), "0123456789abcdef")

    asyncio.run(leave())
    yard.clock.now += 31

    assert reaped(yard.reaper()) == [1]
    assert len(yard.driver.there) == 2


def test_box_without_a_lease_is_reaped_after_one_lease_time(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    (yard.directory / ident).unlink()
    reaper = yard.reaper()

    assert reaped(reaper) == [0]
    yard.clock.now += 29
    assert reaped(reaper) == [0]
    yard.clock.now += 2
    assert reaped(reaper) == [1]

    assert yard.driver.there == {}
    assert yard.told[0].reason == "without a lease"


@pytest.mark.parametrize(
    "content", [b"", b"\xff\0", b"now here odd gone", b"1 2 3 4 5 6", b"9" * 5000]
)
def test_unreadable_lease_counts_as_missing(yard: Yard, content: bytes) -> None:
    ident = asyncio.run(yard.leave_box())
    (yard.directory / ident).write_bytes(content)
    reaper = yard.reaper()

    assert reaped(reaper) == [0]
    yard.clock.now += 31
    assert reaped(reaper) == [1]


def test_lease_renewed_in_time_stays_valid(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    reaper = yard.reaper()
    for _ in range(10):
        yard.clock.now += 20
        yard.gone.touch()

        assert reaped(reaper) == [0]


def test_deleted_lease_directory_is_recreated_without_losing_boxes(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    reaper = yard.reaper()
    (yard.directory / ident).unlink()
    yard.directory.rmdir()

    assert reaped(reaper) == [0]
    yard.gone.touch()
    yard.clock.now += 29

    assert reaped(reaper) == [0]
    assert [lease.ident for lease in yard.gone.all()] == [ident]


def test_nothing_is_reaped_if_leases_are_not_writable(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 3600
    leases, drivers = yard.leases("reaper"), {"odd": yard.driver}

    assert reaped(Reaper(leases, lambda: drivers, writable=lambda path: False)) == [0]
    assert len(yard.driver.there) == 1


def test_worker_recovers_after_a_failed_lease_renewal(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    (ident,) = yard.gone.held
    (yard.directory / ident).unlink()
    (yard.directory / ident).mkdir()

    yard.gone.touch()
    yard.gone.touch()

    (yard.directory / ident).rmdir()
    yard.gone.touch()
    assert [lease.ident for lease in yard.gone.all()] == [ident]


def test_wall_clock_jump_expires_no_lease(tmp_path: Path) -> None:
    leases = Leases(tmp_path, "worker", LeaseTimes(touch_s=3600))
    ident = leases.draw()
    leases.take(ident, "odd")
    for jumped in (0.0, time.time() + 1e8):
        os.utime(tmp_path / ident, (jumped, jumped))

        lease = leases.read(ident)

        assert leases.is_live(lease)
        assert lease is not None
        assert lease.age_s < 60
    leases.close()


def test_reboot_expires_every_lease(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    path = yard.directory / ident
    told, _, *rest = path.read_text().split()
    path.write_text(f"{told} another-boot {' '.join(rest)}\n")

    assert yard.gone.read(ident) == Lease(ident, "odd", "gone", float("inf"))
    assert reaped(yard.reaper()) == [1]


def test_unremovable_box_keeps_its_lease_for_a_later_retry(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 31
    reaper = yard.reaper()
    yard.driver.stuck = True
    assert reaped(reaper) == [0]
    assert len(list(yard.gone.all())) == 1

    yard.driver.stuck = False

    assert reaped(reaper) == [1]


def test_expired_leases_of_missing_boxes_are_removed(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    del yard.driver.there[ident]
    reaper = yard.reaper()
    assert reaped(reaper) == [0]
    assert len(list(yard.gone.all())) == 1
    yard.clock.now += 31

    assert reaped(reaper) == [0]
    assert list(yard.gone.all()) == []


def test_lease_of_an_unresponsive_driver_is_kept(yard: Yard) -> None:
    class Silent(OddDriver):
        async def found(self) -> Sequence[str]:
            msg = "no engine answers"
            raise WorkFailed("box_unavailable", msg, retriable=True)

    idents = [yard.gone.draw(), yard.gone.draw()]
    yard.gone.take(idents[0], "silent")
    yard.gone.take(idents[1], "nobody")
    yard.clock.now += 31
    drivers = {"silent": Silent("silent"), "odd": yard.driver}

    assert reaped(Reaper(yard.leases("reaper"), lambda: drivers)) == [0]

    assert [lease.ident for lease in yard.gone.all()] == [idents[0]]


def test_unresponsive_driver_does_not_block_reaping_of_others(yard: Yard) -> None:
    class Silent(OddDriver):
        async def found(self) -> Sequence[str]:
            msg = "no engine answers"
            raise WorkFailed("box_unavailable", msg, retriable=True)

    asyncio.run(yard.leave_box())
    yard.clock.now += 31
    drivers = {"silent": Silent("silent"), "odd": yard.driver}

    assert reaped(Reaper(yard.leases("reaper"), lambda: drivers)) == [1]


def test_lease_is_renewed_by_its_own_thread(tmp_path: Path) -> None:
    clock = Hand()
    leases = Leases(tmp_path, "a worker", QUICK, clock)
    ident = leases.draw()
    leases.take(ident, "odd")
    clock.now += 100
    until = time.monotonic() + 20
    while time.monotonic() < until and not leases.is_live(leases.read(ident)):
        os.sched_yield()

    lease = leases.read(ident)
    leases.close()
    leases.close()

    assert lease == Lease(ident, "odd", "a-worker", 0.0)
    assert leases.give(ident)
    assert not leases.give(ident)


def test_drawn_box_names_are_valid_and_unique(yard: Yard) -> None:
    drawn = {yard.gone.draw() for _ in range(100)}

    assert len(drawn) == 100
    assert all(re.fullmatch(IDENT, ident) for ident in drawn)
    assert all(yard.leases("another").is_of_here(ident) for ident in drawn)


def test_reaper_without_leases_queries_no_driver(tmp_path: Path) -> None:
    def drivers() -> dict[str, OddDriver]:
        pytest.fail("a driver is looked at")

    assert reaped(Reaper(Leases(tmp_path / "leases", "worker"), drivers)) == [0]
