"""A survey of the drivers on this host: what each enforces and by what, and what it lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollcall.sandbox.boxes.box import DRIVERS, Driver, driver


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
