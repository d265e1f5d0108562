"""A box that is opened for its borrower alone, with a lease that ends with it."""

from typing import Any, cast

from sandbox.boxes.box import Box, Driver, Spec
from sandbox.boxes.leases import Leases


class LeasedBox:
    """As the box within; only its end is the lease's too."""

    def __init__(self, box: Box, leases: Leases) -> None:
        self._box = box
        self._leases = leases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def close(self) -> None:
        """May be called twice; what cannot be removed is left to the reaper."""
        try:
            await self._box.close()
        except BaseException:
            self._leases.let_lapse(self._box.ident)
            raise
        self._leases.give(self._box.ident)


async def open_leased(driver: Driver, spec: Spec, leases: Leases) -> Box:
    """A box in which nobody has been; whoever opens it closes it. Raises WorkFailed."""
    ident = leases.draw()
    leases.take(ident, driver.of(spec).name)
    try:
        box = await driver.open(spec, ident)
    except BaseException:
        leases.let_lapse(ident)  # whatever is left of it is the reaper's
        raise
    return cast(Box, LeasedBox(box, leases))
