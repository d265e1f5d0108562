"""The boxes that exist on this host, as each driver finds them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollcall.sandbox.boxes.box import DRIVERS, driver
from rollcall.schemas.errors import RollcallError


@dataclass(frozen=True, slots=True)
class HostBoxes:
    """The answers of all drivers."""

    found: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of boxes, by driver."""
    silent: dict[str, str] = field(default_factory=dict)
    """The errors of drivers that do not answer, by driver."""


async def on_this_host() -> HostBoxes:
    """Ask all drivers; one that is not installed here does not answer."""
    boxes = HostBoxes()
    for name in DRIVERS:
        try:
            boxes.found[name] = await driver(name).found()
        except RollcallError as error:
            boxes.silent[name] = str(error)
    return boxes
