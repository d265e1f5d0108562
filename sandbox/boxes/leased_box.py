"""A box that is opened without a pool, with a lease that ends with it."""

from typing import Any, cast

from rollcall.sandbox.boxes.box import Box, Driver, Spec
from rollcall.sandbox.boxes.leases import Leases


class LeasedBox:
    """A wrapper of a box that also ends its lease when the box is closed."""

    def __init__(self, box: Box, leases: Leases) -> None:
        self._box = box
        self._leases = leases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def close(self) -> None:
        """Close the box, or leave it to the reaper if it cannot be removed. May be called twice."""
        try:
            await self._box.close()
        except BaseException:
            self._leases.let_lapse(self._box.ident)
            raise
        self._leases.give(self._box.ident)


async def open_leased(driver: Driver, spec: Spec, leases: Leases) -> Box:
    """Open an unused box with a lease; the caller closes it. Raises WorkFailed."""
    ident = leases.draw()
    leases.take(ident, driver.of(spec).name)
    try:
        box = await driver.open(spec, ident)
    except BaseException:
        leases.let_lapse(ident)  # the reaper removes what is left of the box
        raise
    return cast(Box, LeasedBox(box, leases))
