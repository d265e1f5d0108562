"""Removal of boxes: in background tasks, with retries, and by the reaper.

The reaper removes boxes of this host that no live lease covers. It keeps no records: drivers list
the boxes that exist, leases say which are in use. Several reapers may run on one host; removing a
box twice does no harm. A box without any lease is removed only after it has been seen so for
`lapse_s`: its lease may be about to be renewed.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from rollcall.sandbox.boxes.box import Box, Driver, Spec
from rollcall.sandbox.boxes.leases import Leases
from rollcall.schemas.messages import Instance

Tell = Callable[[Instance], None]
REMOVE_AGAIN_S = (0.2, 1.0, 5.0)
"""Pauses before each retry, in seconds; after the last one the box is left to the reaper."""
REASON_CHARS, HEAD_CHARS = 500, 150

log = structlog.get_logger()


class BoxNotes:
    """The reporter of what happens to the boxes of one driver."""

    def __init__(self, driver: str, tell: Tell) -> None:
        self._driver = driver
        self._tell = tell

    def note(
        self,
        kind: str,
        ident: str,
        spec: Spec | None = None,
        mode: str = "unknown",
        *,
        whose: tuple[str, int] = ("", 0),
        reason: str = "",
        took_s: float = 0.0,
    ) -> None:
        """Report an event of a box; `whose` is the rollout and attempt."""
        image = spec.image if spec else ""
        if len(reason) > REASON_CHARS:  # the end of a build's log holds the cause
            reason = f"{reason[:HEAD_CHARS]} ... {reason[HEAD_CHARS + 5 - REASON_CHARS :]}"
        about = "", self._driver, image, mode, *whose, reason, took_s
        self._tell(Instance(ident, "", kind, *about))


class BoxRemoval:
    """The removal of one driver's boxes, each in a task that outlives its caller."""

    def __init__(
        self,
        driver: Driver,
        leases: Leases,
        notes: BoxNotes,
        again_s: Sequence[float] = REMOVE_AGAIN_S,
    ) -> None:
        self._driver = driver
        self._leases = leases
        self._notes = notes
        self._again_s = again_s
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, ident: str, box: Box | None = None, reason: str = "", *, made: bool = True
    ) -> "asyncio.Task[None]":
        """Remove a box; by its name alone if there is no `box`. `made`: it was ready once."""
        task = asyncio.create_task(self._remove(ident, box, reason, made), name="box removal")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def join(self) -> None:
        """Wait until all removals that were begun have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _remove(self, ident: str, box: Box | None, reason: str, made: bool) -> None:
        began = time.monotonic()
        for pause_s in (0.0, *self._again_s):
            await asyncio.sleep(pause_s)
            try:
                await (box.close() if box is not None else self._driver.remove(ident))
            except Exception as error:  # whatever the driver raises, the box must still be removed
                reason, box = str(error), None
                continue
            self._leases.give(ident)
            if made:
                took_s = time.monotonic() - began
                self._notes.note("removed", ident, reason=reason, took_s=took_s)
            return
        self._leases.let_lapse(ident)
        self._notes.note("failed", ident, reason=f"not removed: {reason}")
        log.error("box_not_removed", box_id=ident, error=reason)


class Reaper:
    """The reaper of one worker; it never removes the worker's own boxes."""

    def __init__(
        self,
        leases: Leases,
        drivers: Callable[[], Mapping[str, Driver]],
        tell: Callable[[Instance], None] = lambda instance: None,
        *,
        writable: Callable[[Path], bool] = lambda path: os.access(path, os.W_OK),
    ) -> None:
        self.leases = leases
        self.counts: Counter[str] = Counter()
        self._drivers = drivers
        """The drivers that are available on this host, by name."""
        self._tell = tell
        self._writable = writable
        self._bare: dict[str, float] = {}
        """The time at which each box was first seen without a lease."""
        self._said: set[str] = set()

    async def reap(self) -> int:
        """Remove boxes without a live lease; return their number."""
        directory = self.leases.directory
        if not directory.is_dir():  # no worker here has ever had a box
            return 0
        if not self._writable(directory):
            self._say("leases_read_only", str(directory))  # live workers cannot renew
            return 0
        bare, self._bare = self._bare, {}
        removed = 0
        silent: set[str] = set()
        there: set[str] = set()
        for name, driver in self._drivers().items():
            found = await self._found(driver)
            if found is None:
                silent.add(name)
            for ident in found or ():
                there.add(ident)
                removed += await self._judge(driver, ident, bare)
        self._forget(there, silent)
        return removed

    async def _found(self, driver: Driver) -> list[str] | None:
        """Return its boxes that belong to these leases; None if it does not answer."""
        try:
            found = await driver.found()
        except Exception as error:
            self._say("boxes_not_found", driver.name, str(error))
            return None
        return [ident for ident in found if self.leases.is_of_here(ident)]

    async def _judge(self, driver: Driver, ident: str, bare: Mapping[str, float]) -> bool:
        lease = self.leases.read(ident)
        if ident in self.leases.held or self.leases.is_live(lease):
            return False
        now = self.leases.clock()
        if lease is None and now - bare.get(ident, now) < self.leases.times.lapse_s:
            self._bare[ident] = bare.get(ident, now)
            return False
        try:
            await driver.remove(ident)
        except Exception as error:
            self._say("box_not_reaped", ident, str(error))
            return False
        if not self.leases.give(ident) and lease is not None:
            return False  # another reaper removed and counted it
        self.counts["reaped"] += 1
        reason = "without a lease" if lease is None else f"lease of {lease.owner} lapsed"
        self._tell(Instance(ident, "", "reaped", driver=driver.name, reason=reason))
        log.warning("box_reaped", box_id=ident, driver=driver.name, reason=reason)
        return True

    def _forget(self, there: Collection[str], silent: Collection[str]) -> None:
        """Remove lapsed leases on boxes that are gone."""
        for lease in self.leases.all():
            held = lease.ident in self.leases.held or self.leases.is_live(lease)
            if not held and lease.ident not in there and lease.driver not in silent:
                self.leases.give(lease.ident)

    def _say(self, event: str, *about: str) -> None:
        """Log a warning once per subject, since the next pass will find the same."""
        if (event + about[0]) not in self._said:
            self._said.add(event + about[0])
            log.warning(event, about=about)
