"""The boxes that this host has, by driver, without anybody's memory of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sandbox.boxes.box import DRIVERS, driver
from schemas.errors import RollcallError


@dataclass(frozen=True, slots=True)
class HostBoxes:
    """What drivers say."""

    found: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of boxes, by driver."""
    silent: dict[str, str] = field(default_factory=dict)
    """Drivers that do not answer, and why."""


async def on_this_host() -> HostBoxes:
    """Ask all drivers; one that is not installed here does not answer."""
    boxes = HostBoxes()
    for name in DRIVERS:
        try:
            boxes.found[name] = await driver(name).found()
        except RollcallError as error:
            boxes.silent[name] = str(error)
    return boxes
