"""The measured drivers: the check that they work here, and the images of their boxes."""

import asyncio

from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.schemas.errors import RollcallError

IMAGES = {"bubblewrap": "", "docker": "base"}
"""The image of each driver: the host's programs, or the one that `rollcall images` builds."""


def spec_of(name: str) -> Spec:
    return Spec(image=IMAGES.get(name, ""))


def require_driver(name: str) -> None:
    """Raise LeftOut if a driver cannot open a box here."""

    async def tried() -> None:
        box = await driver(name).open(spec_of(name))
        await box.close()

    try:
        asyncio.run(tried())
    except RollcallError as error:
        msg = f"driver {name!r} opens no box here: {error}"
        raise BenchmarkUnavailable(msg) from error
