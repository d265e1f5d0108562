"""Removal of boxes in background tasks, with retries; what then remains is left to the reaper."""

import asyncio
import time
from collections.abc import Callable, Sequence

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
