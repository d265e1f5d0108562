"""Process names that programs in boxes give themselves."""

import asyncio

import pytest

from rollcall.sandbox.boxes.box import BoxProgram, Spec
from rollcall.sandbox.boxes.bubblewrap import MARK, BubblewrapDriver
from tests.support.engines import has, left_out
from tests.support.processes_left import running

NAMES = (
    "\033[2J\033[31mPWNED\nfake0123456789ab lent ok", "[bold red]markup[/]", "../../etc/passwd",
    "<script>alert(1)</script>", "\u202eabcdefgh", "x" * 500, "short",
)  # fmt: skip
FORGE = 'exec -a "$1" sleep 600'


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "names that are forged in boxes")


def test_forged_process_names_are_not_found_as_boxes() -> None:
    async def whole() -> None:
        driver = BubblewrapDriver()
        box = await driver.open(Spec())
        programs: list[BoxProgram] = []
        try:
            for name in NAMES:
                forge = "/bin/bash", "-c", FORGE, "x", MARK + name
                programs.append(await box.start(*forge))
            while not all(running(MARK + name) for name in NAMES):
                await asyncio.sleep(0.01)

            found = await driver.found()

            assert box.ident in found
            assert [each for each in found if any(name in each for name in NAMES)] == []
            assert all(each.isalnum() for each in found)
        finally:
            await box.close()

    asyncio.run(asyncio.wait_for(whole(), 60))
