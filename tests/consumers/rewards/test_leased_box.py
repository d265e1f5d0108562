"""A box that is opened with a lease of its own, as graders do."""

import asyncio
from pathlib import Path

import pytest

from rollcall.consumers.rewards.scoring_host import open_leased
from rollcall.sandbox.boxes.box import Box, Driver, Spec
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.local import LocalDriver
from rollcall.schemas.errors import WorkFailed
from tests.support.odd_driver import OddDriver


def test_lease_of_a_box_ends_when_the_box_is_closed(tmp_path: Path) -> None:
    async def story() -> None:
        leases = Leases(tmp_path, "grader")
        box = await open_leased(LocalDriver(), Spec(), leases)
        await box.write("note", b"seen")

        assert (await box.run(["cat", "note"])).output == "seen"
        assert [lease.ident for lease in leases.all()] == [box.ident]
        await box.close()
        await box.close()
        assert list(leases.all()) == []
        leases.close()

    asyncio.run(story())


@pytest.mark.parametrize("trouble", ["failing", "clinging"])
def test_lease_of_a_failed_or_unremovable_box_is_left_to_expire(
    tmp_path: Path, trouble: str
) -> None:
    async def story() -> None:
        driver, leases = OddDriver(), Leases(tmp_path, "grader")
        getattr(driver, trouble).add(0)
        with pytest.raises(WorkFailed):
            await (await open_leased(driver, Spec(), leases)).close()

        assert leases.held == {}
        assert len(list(leases.all())) == 1
        leases.close()

    asyncio.run(story())


class Chooser(OddDriver):
    """Has no boxes of its own: it names the driver that has."""

    def of(self, spec: Spec) -> Driver:
        del spec
        return LocalDriver()

    async def open(self, spec: Spec, ident: str = "") -> Box:
        return await self.of(spec).open(spec, ident)


def test_lease_records_the_driver_of_its_box(tmp_path: Path) -> None:
    async def story() -> None:
        leases = Leases(tmp_path, "grader")
        box = await open_leased(Chooser("chooser"), Spec(), leases)

        assert [lease.driver for lease in leases.all()] == ["local"]
        await box.close()
        leases.close()

    asyncio.run(story())
