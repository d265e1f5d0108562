"""The services of a rewards worker for the scorers that wait in its event loop."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from rollcall.sandbox.boxes.box import Box, Driver, Spec, driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.schemas.claims import NO_STORE, Objects
from rollcall.schemas.errors import FailureCode, ObjectLost, WorkFailed
from rollcall.schemas.messages import Claim

T = TypeVar("T")


class ScoringHosts:
    """Makes the host of each trajectory. All but construction runs on the event loop."""

    def __init__(
        self,
        *,
        box: str,
        objects: Objects | None,
        leases: Leases | None = None,
        timeout_s: float = math.inf,
    ) -> None:
        """Take settings; without `leases` no reaper removes its boxes."""
        self.timeout_s = timeout_s
        self.box = box
        self.objects = objects
        self.leases = leases
        self._driver: Driver | None = None

    def __call__(self) -> "TrajectoryHost":
        return TrajectoryHost(self)

    async def open(self, spec: Spec) -> Box:
        """Return a box of the configured kind. Raises WorkFailed."""
        if not self.box:
            msg = "no kind of box is set for scorers: rewards.box names one, such as 'local'"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        if self._driver is None:
            self._driver = driver(self.box)
        if self.leases is None:
            return await self._driver.open(spec)
        return await open_leased(self._driver, spec, self.leases)


@dataclass(slots=True)
class TrajectoryHost:
    """Implements `rollcall.sandbox.host.ScoringHost` for the scorers of one trajectory."""

    hosts: ScoringHosts
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def timeout_s(self) -> float:
        return self.hosts.timeout_s

    async def fetch(self, claim: Claim) -> bytes:
        """Return the content of an object. Raises ObjectLost, and Unavailable."""
        objects = self.hosts.objects
        if objects is None:
            msg = f"object {claim.uri} is nowhere: {NO_STORE}"
            raise ObjectLost(msg)
        return await asyncio.to_thread(objects.get, claim)

    async def open_box(self, spec: Spec) -> Box:
        """Return a new box. Raises WorkFailed."""
        return await self.hosts.open(spec)

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        if name not in self._made:
            self._made[name] = await make()
        return cast(T, self._made[name])


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
