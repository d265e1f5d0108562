"""The drivers that are measured: whether they are here, and what their boxes are made of."""

import asyncio

from compose.benchmarks.figure import LeftOut
from sandbox.boxes.box import Spec, driver
from schemas.errors import RollcallError

IMAGES = {"bubblewrap": "", "docker": "base"}
"""What each makes boxes of: the host's programs, or the image that `rollcall images` builds."""


def spec_of(name: str) -> Spec:
    return Spec(image=IMAGES.get(name, ""))


def require_driver(name: str) -> None:
    """Raises LeftOut where a driver opens no box here."""

    async def tried() -> None:
        box = await driver(name).open(spec_of(name))
        await box.close()

    try:
        asyncio.run(tried())
    except RollcallError as error:
        msg = f"driver {name!r} opens no box here: {error}"
        raise LeftOut(msg) from error
