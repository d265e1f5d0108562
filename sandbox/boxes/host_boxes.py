"""The boxes that exist on this host, as each driver finds them, and a survey of the drivers: what
each enforces and by what, and what it lacks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollcall.sandbox.boxes.box import DRIVERS, Driver, driver
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


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The state of one driver on this host."""

    name: str
    unavailable: str
    """The reason why it opens no box, and the remedy; empty if it does."""
    enforces: Mapping[str, str]
    lacks: Sequence[str]
    """Limits that it does not enforce here, and what to do about each."""
    found: Sequence[str]
    """The names of existing boxes."""

    @property
    def isolates(self) -> bool:
        """True if it opens boxes here that are isolated from their host."""
        return not self.unavailable and "network" in self.enforces


async def survey() -> list[DriverReport]:
    """Report on all drivers; each opens a box to see that it can."""
    return [await _report(driver(name)) for name in DRIVERS]


async def _report(each: Driver) -> DriverReport:
    found = await each.found()
    return DriverReport(
        each.name, await each.unavailable(), each.enforces(), each.lacks(), list(found)
    )
