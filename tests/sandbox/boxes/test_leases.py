"""Leases, and the reaper that knows by them which boxes nobody holds any more."""

import asyncio
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sandbox.boxes.box import IDENT, Spec
from sandbox.boxes.leases import Lease, Leases, LeaseTimes
from sandbox.boxes.reaper import Reaper
from schemas.errors import WorkFailed
from schemas.messages import Instance
from tests.support.odd_driver import OddDriver

QUICK = LeaseTimes(touch_s=0.01, lapse_s=30.0, reap_s=0.01)


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Yard:
    """A host with one driver and one directory of leases; whoever held boxes here is gone."""

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
        """A box whose owner tells its lease for the last time."""
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
    """What each removes, all at once."""

    async def together() -> list[int]:
        return list(await asyncio.gather(*(reaper.reap() for reaper in reapers)))

    return asyncio.run(together())


def test_a_box_whose_lease_has_lapsed_is_removed_and_its_lease_with_it(yard: Yard) -> None:
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


def test_two_reapers_at_once_remove_it_once_and_one_counts_it(yard: Yard) -> None:
    for _ in range(5):
        asyncio.run(yard.leave_box())
    yard.clock.now += 31

    assert sum(reaped(yard.reaper(), yard.reaper())) == 5

    assert yard.driver.there == {}
    assert len(yard.told) == 5


def test_what_a_worker_holds_its_own_reaper_never_removes(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 3600

    assert reaped(yard.reaper(yard.gone)) == [0]
    assert len(yard.driver.there) == 1


def test_boxes_that_have_no_lease_here_are_let_be(yard: Yard, tmp_path: Path) -> None:
    others = Leases(tmp_path / "elsewhere", "other", clock=yard.clock)

    async def leave() -> None:
        await yard.leave_box()
        await yard.driver.open(Spec(), others.draw())
        await yard.driver.open(Spec(), "0123456789abcdef")

    asyncio.run(leave())
    yard.clock.now += 31

    assert reaped(yard.reaper()) == [1]
    assert len(yard.driver.there) == 2


def test_a_box_without_a_lease_has_as_long_as_a_lease_lives(yard: Yard) -> None:
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
def test_a_lease_that_cannot_be_read_is_none(yard: Yard, content: bytes) -> None:
    ident = asyncio.run(yard.leave_box())
    (yard.directory / ident).write_bytes(content)
    reaper = yard.reaper()

    assert reaped(reaper) == [0]
    yard.clock.now += 31
    assert reaped(reaper) == [1]


def test_a_lease_that_is_told_again_in_time_goes_on(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    reaper = yard.reaper()
    for _ in range(10):
        yard.clock.now += 20
        yard.gone.touch()

        assert reaped(reaper) == [0]


def test_a_directory_that_is_gone_is_made_again_and_costs_no_box(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    reaper = yard.reaper()
    (yard.directory / ident).unlink()
    yard.directory.rmdir()

    assert reaped(reaper) == [0]
    yard.gone.touch()
    yard.clock.now += 29

    assert reaped(reaper) == [0]
    assert [lease.ident for lease in yard.gone.all()] == [ident]


def test_where_leases_cannot_be_told_nothing_is_reaped(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 3600
    leases, drivers = yard.leases("reaper"), {"odd": yard.driver}

    assert reaped(Reaper(leases, lambda: drivers, writable=lambda path: False)) == [0]
    assert len(yard.driver.there) == 1


def test_a_worker_that_cannot_tell_its_leases_says_so_once_and_goes_on(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    (ident,) = yard.gone.held
    (yard.directory / ident).unlink()
    (yard.directory / ident).mkdir()

    yard.gone.touch()
    yard.gone.touch()

    (yard.directory / ident).rmdir()
    yard.gone.touch()
    assert [lease.ident for lease in yard.gone.all()] == [ident]


def test_a_clock_on_the_wall_that_jumps_ends_no_lease(tmp_path: Path) -> None:
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


def test_after_a_boot_every_lease_has_lapsed(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    path = yard.directory / ident
    told, _, *rest = path.read_text().split()
    path.write_text(f"{told} another-boot {' '.join(rest)}\n")

    assert yard.gone.read(ident) == Lease(ident, "odd", "gone", float("inf"))
    assert reaped(yard.reaper()) == [1]


def test_a_box_that_cannot_be_removed_keeps_its_lease_for_the_next_time(yard: Yard) -> None:
    asyncio.run(yard.leave_box())
    yard.clock.now += 31
    reaper = yard.reaper()
    yard.driver.stuck = True
    assert reaped(reaper) == [0]
    assert len(list(yard.gone.all())) == 1

    yard.driver.stuck = False

    assert reaped(reaper) == [1]


def test_lapsed_leases_on_boxes_that_are_gone_are_removed(yard: Yard) -> None:
    ident = asyncio.run(yard.leave_box())
    del yard.driver.there[ident]
    reaper = yard.reaper()
    assert reaped(reaper) == [0]
    assert len(list(yard.gone.all())) == 1
    yard.clock.now += 31

    assert reaped(reaper) == [0]
    assert list(yard.gone.all()) == []


def test_a_lease_of_a_driver_that_does_not_answer_is_kept(yard: Yard) -> None:
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


def test_a_driver_that_does_not_answer_stops_no_other(yard: Yard) -> None:
    class Silent(OddDriver):
        async def found(self) -> Sequence[str]:
            msg = "no engine answers"
            raise WorkFailed("box_unavailable", msg, retriable=True)

    asyncio.run(yard.leave_box())
    yard.clock.now += 31
    drivers = {"silent": Silent("silent"), "odd": yard.driver}

    assert reaped(Reaper(yard.leases("reaper"), lambda: drivers)) == [1]


def test_a_lease_is_told_by_a_thread_of_its_own(tmp_path: Path) -> None:
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


def test_names_of_boxes_are_names_and_differ(yard: Yard) -> None:
    drawn = {yard.gone.draw() for _ in range(100)}

    assert len(drawn) == 100
    assert all(re.fullmatch(IDENT, ident) for ident in drawn)
    assert all(yard.leases("another").is_of_here(ident) for ident in drawn)


def test_nobody_who_never_had_a_box_asks_for_any(tmp_path: Path) -> None:
    def drivers() -> dict[str, OddDriver]:
        pytest.fail("a driver is looked at")

    assert reaped(Reaper(Leases(tmp_path / "leases", "worker"), drivers)) == [0]
