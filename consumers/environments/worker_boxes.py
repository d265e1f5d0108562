"""The boxes of an environments worker: a pool for each driver, their leases, and the reaper."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box import AUTO, DRIVERS, Box, Driver, Spec, driver
from rollcall.sandbox.boxes.box_removal import Reaper, Tell
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.pool import BoxPool, Mode
from rollcall.schemas.errors import FailureCode, RollcallError, WorkFailed

REAP_S = 60.0
"""Time limit for one check of all boxes of a host."""

log = structlog.get_logger()


class WorkerBoxes:
    """Pools and drivers; all but construction and `tick` runs on the event-loop thread."""

    def __init__(
        self,
        loop_thread: EventLoopThread,
        leases: Leases,
        tell: Tell,
        *,
        warm: int,
        box: str = AUTO,
    ) -> None:
        """`box` is the default driver."""
        self.loop_thread = loop_thread
        self.box = box
        self.leases = leases
        self.warm = warm
        self.reaper = Reaper(leases, self._all_drivers, tell)
        self._tell = tell
        self._pools: dict[str, BoxPool] = {}
        self._drivers: dict[str, Driver] = {}
        self._unknown: set[str] = set()
        self._lent: dict[str, BoxPool] = {}
        self._of_task: dict[tuple[str, int, int], Box] = {}
        """The first box lent to a rollout's attempt, until it is given back or entered."""
        self._reap_due = 0.0
        self._reaping: asyncio.Task[None] | None = None

    def of(self, rollout_id: str, attempt: int, journal: int = 0) -> "SessionBoxes":
        """Return the boxes of one session."""
        return SessionBoxes(self, (rollout_id, attempt), journal)

    def tick(self) -> None:
        """Have the reaper look for boxes without a holder, at the start and at intervals.

        On a host that never had a box, this costs one check of a directory.
        """
        now = time.monotonic()
        if now < self._reap_due:
            return
        self._reap_due = now + self.leases.times.reap_s
        if self.leases.directory.is_dir():
            self.loop_thread.call(self._reap)

    def _reap(self) -> None:
        if self._reaping is None or self._reaping.done():
            self._reaping = asyncio.create_task(self._reap_once(), name="reaper")

    async def _reap_once(self) -> None:
        try:
            async with asyncio.timeout(REAP_S):
                await self.reaper.reap()
        except TimeoutError:
            log.warning("box_reaper_slow", after_s=REAP_S)

    async def lend(
        self, name: str | None, spec: Spec, whose: tuple[str, int], mode: Mode, journal: int = 0
    ) -> Box:
        """Lend a box. Raises WorkFailed."""
        self._check_mounts(spec.mounts)
        pool = self._pool(name or self.box, spec)
        box = await pool.lend(spec, whose, mode)
        self._lent[box.ident] = pool
        self._of_task.setdefault((*whose, journal), box)
        return box

    def _check_mounts(self, mounts: Mapping[str, str]) -> None:
        """Raise WorkFailed(`bad_config`) for mounts that would show the worker's state to a box."""
        state = self.leases.directory.parent.resolve()
        for place, source in mounts.items():
            real = Path(source).resolve()
            if state.is_relative_to(real) or (place == source and real.is_relative_to(state)):
                msg = f"{place} is not shown to a box: it holds state of this worker, or lies in it"
                raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)

    async def give_back(self, box: Box, reason: str) -> None:
        """Remove a lent box. May be called twice."""
        pool = self._lent.pop(box.ident, None)
        self._of_task = {whose: each for whose, each in self._of_task.items() if each is not box}
        if pool is not None:
            await pool.give_back(box, reason)

    def holds(self, box: Box) -> bool:
        """Return True if it is still lent."""
        return box.ident in self._lent

    def enter_task(self, whose: tuple[str, int, int]) -> Box:
        """Return the box of the task, once. Raises WorkFailed(`session_lost`)."""
        box = self._of_task.pop(whose, None)
        if box is None:
            msg = "the box of its task is gone, or another process of the agent was in it"
            raise WorkFailed(FailureCode.SESSION_LOST, msg, retriable=False)
        return box

    def driver_of(self, name: str | None, spec: Spec) -> str:
        """Return the name of the driver for such a box. Raises WorkFailed(`bad_config`)."""
        return self._driver(name or self.box).of(spec).name

    def _pool(self, name: str, spec: Spec) -> BoxPool:
        """Return the pool of a driver, made at its first use. Raises WorkFailed(`bad_config`)."""
        chosen = self._driver(self._driver(name).of(spec).name)
        if chosen.name not in self._pools:
            if not self._pools:
                self.loop_thread.at_close(self.close)
            pool = BoxPool(chosen, self.leases, self._tell, warm=self.warm)
            self._pools[chosen.name] = pool
        return self._pools[chosen.name]

    async def close(self) -> None:
        """Give every box back. May be called twice."""
        for pool in self._pools.values():
            await pool.close()
        self.leases.close()

    def _driver(self, name: str) -> Driver:
        if name not in self._drivers:
            self._drivers[name] = driver(name)
        return self._drivers[name]

    def _all_drivers(self) -> Mapping[str, Driver]:
        """Return the drivers that are installed here; others have no boxes."""
        for name in DRIVERS:
            if name not in self._unknown:
                try:
                    self._driver(name)
                except RollcallError as error:
                    self._unknown.add(name)
                    log.info("driver_unavailable", driver=name, error=str(error))
        return {name: each for name, each in self._drivers.items() if name in DRIVERS}


@dataclass(frozen=True, slots=True)
class SessionBoxes:
    """Implements `rollcall.sandbox.host.Boxes` for one session."""

    boxes: WorkerBoxes
    whose: tuple[str, int]
    journal: int = 0
    """The partition of the rollout's journal."""

    @property
    def default(self) -> str:
        """The default driver."""
        return self.boxes.box

    async def lend(self, driver: str | None, spec: Spec, mode: Mode = "persistent") -> Box:
        """Return an unused box, to be given back. Raises WorkFailed."""
        return await self.boxes.lend(driver, spec, self.whose, mode, self.journal)

    async def give_back(self, box: Box, reason: str = "") -> None:
        """Remove the box. May be called twice."""
        await self.boxes.give_back(box, reason)

    def driver_of(self, driver: str | None, spec: Spec) -> str:
        """Return the name of the driver for such a box. Raises WorkFailed(`bad_config`)."""
        return self.boxes.driver_of(driver, spec)

    def holds(self, box: Box) -> bool:
        """Return True if it is still lent."""
        return self.boxes.holds(box)

    def enter_task(self) -> Box:
        """Return the box of this rollout's environment, once. Raises WorkFailed(`session_lost`)."""
        return self.boxes.enter_task((*self.whose, self.journal))
