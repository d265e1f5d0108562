"""The requirements of figures: a driver of boxes that works here, a language model."""

import asyncio
from pathlib import Path

from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.compose.extras import require
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.schemas.errors import RollcallError

LANGUAGE_MODEL = Path("smollm2")
"""The model of 135 million parameters for the figures of training and serving."""


def language_model() -> Path:
    """Return its directory; raises BenchmarkUnavailable if it has not been fetched."""
    require("torch", "transformers")
    if not (LANGUAGE_MODEL / "config.json").is_file():
        msg = (
            f"no policy in {str(LANGUAGE_MODEL)!r} here; `rollcall policy fetch smollm2 --to "
            f"{LANGUAGE_MODEL}` writes one"
        )
        raise BenchmarkUnavailable(msg)
    return LANGUAGE_MODEL


IMAGES = {"bubblewrap": "", "docker": "base"}
"""The image of each driver: the host's programs, or the one that `rollcall images` builds."""


def spec_of(name: str) -> Spec:
    return Spec(image=IMAGES.get(name, ""))


def require_driver(name: str) -> None:
    """Raise BenchmarkUnavailable if a driver cannot open a box here."""

    async def tried() -> None:
        box = await driver(name).open(spec_of(name))
        await box.close()

    try:
        asyncio.run(tried())
    except RollcallError as error:
        msg = f"driver {name!r} opens no box here: {error}"
        raise BenchmarkUnavailable(msg) from error
