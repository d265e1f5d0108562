"""What each driver can do on this host, by what, and what it lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.boxes.box import DRIVERS, Driver, driver


@dataclass(frozen=True, slots=True)
class DriverReport:
    """One driver on this host."""

    name: str
    unavailable: str
    """Why it opens no box, and the remedy; empty where it does."""
    enforces: Mapping[str, str]
    lacks: Sequence[str]
    """What would hold its boxes better here, and what to do for it."""
    found: Sequence[str]
    """The boxes that there are."""

    @property
    def isolates(self) -> bool:
        """Whether it opens boxes here that are cut off from their host."""
        return not self.unavailable and "network" in self.enforces


async def survey() -> list[DriverReport]:
    """Of all drivers; each opens a box to see that it can."""
    return [await _report(driver(name)) for name in DRIVERS]


async def _report(each: Driver) -> DriverReport:
    found = await each.found()
    return DriverReport(
        each.name, await each.unavailable(), each.enforces(), each.lacks(), list(found)
    )
