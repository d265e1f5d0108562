"""A pool of boxes of one driver: some are started ahead, and a used box is never lent again.

The pool has one shelf of ready boxes per spec. A shelf keeps as many ready boxes, each with an open
shell, as were lent at once of late, up to `warm` boxes over all shelves; a box that is taken is
replaced by a new start. At most `starts` boxes start at once: first those that borrowers wait for,
in the order of their requests. A box with mounts or variables of its own, and any that is requested
as `ephemeral`, is started for its borrower alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import structlog

from rollcall.sandbox.boxes.box import Box, BoxLimits, Driver, Spec
from rollcall.sandbox.boxes.box_removal import REMOVE_AGAIN_S, BoxNotes, BoxRemoval, Tell
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.supervised_program import SharedSupervisor
from rollcall.schemas.errors import FailureCode, WorkFailed

Mode = Literal["persistent", "ephemeral"]
Key = tuple[str, BoxLimits, bool, tuple[str, ...]]
Borrower = tuple[str, int]
"""A rollout and its attempt."""
STARTS = 2
"""The number of boxes that start at once: more would only make each of them slower."""
KEEP_S = 300.0
"""Seconds without a request after which a shelf is emptied."""
STALE_S = 30.0
"""Seconds on a shelf after which a box is checked before it is lent."""
ANSWER_S = 10.0
START_S = 120.0
"""Seconds after which a start has failed: it would block the start of others."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Shelf:
    """The ready boxes of one spec."""

    spec: Spec
    ready: deque[tuple[Box, float]] = field(default_factory=deque)
    """The ready boxes, and when each became ready."""
    starting: int = 0
    lent: int = 0
    peak: int = 0
    """The largest number lent at once; that many ready boxes may wait."""
    asked_at: float = 0.0
    expiry: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Wanted:
    """A borrower that waits for a box."""

    spec: Spec
    shelf: _Shelf | None
    """The shelf; None if a box is started for this borrower alone."""
    box: "asyncio.Future[Box]"
    started: bool = False


class BoxPool:
    """The pool of one driver, used on the event loop that it was made on."""

    def __init__(
        self,
        driver: Driver,
        leases: Leases,
        tell: Tell = lambda instance: None,
        *,
        warm: int = 4,
        starts: int = STARTS,
        keep_s: float = KEEP_S,
        stale_s: float = STALE_S,
        start_s: float = START_S,
        remove_again_s: Sequence[float] = REMOVE_AGAIN_S,
    ) -> None:
        self.driver = driver
        self.leases = leases
        self.warm, self.keep_s, self.stale_s, self.start_s = warm, keep_s, stale_s, start_s
        self._notes = BoxNotes(driver.name, tell)
        self._removal = BoxRemoval(driver, leases, self._notes, remove_again_s)
        self._starts = starts
        self._starting = 0
        self._shelves: dict[Key, _Shelf] = {}
        self._line: list[_Wanted] = []
        self._lent: dict[str, tuple[Box, _Shelf | None, Mode, Borrower]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self._supervisor = SharedSupervisor()

    async def lend(self, spec: Spec, whose: Borrower, mode: Mode = "persistent") -> Box:
        """Lend a started, unused box, which must be given back. Raises WorkFailed."""
        if self._over:
            msg = "this worker leaves and lends no more boxes"
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True)
        shelf = self._shelf_of(spec) if mode == "persistent" and _is_plain(spec) else None
        box = await self._from(shelf) if shelf else None
        if box is None:
            box = await self._wait(_Wanted(spec, shelf, asyncio.get_running_loop().create_future()))
        self._lent[box.ident] = box, shelf, mode, whose
        if shelf is not None:
            shelf.lent += 1
            shelf.peak = max(shelf.peak, shelf.lent)
        self._notes.note("lent", box.ident, spec, mode, whose=whose)
        self._pump()
        return box

    async def give_back(self, box: Box, reason: str = "") -> None:
        """Remove a lent box. May be called twice; continues if its caller is cancelled."""
        lent = self._lent.pop(box.ident, None)
        if lent is None:
            return
        _, shelf, mode, whose = lent
        if shelf is not None:
            shelf.lent -= 1
        self._notes.note("returned", box.ident, None, mode, whose=whose, reason=reason)
        await asyncio.shield(self._removal.begin(box.ident, box))

    async def close(self) -> None:
        """Remove every box, including those that are lent. May be called twice."""
        self._over = True
        for wanted in self._line:
            wanted.box.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for shelf in self._shelves.values():
            self._empty(shelf, 0)
            if shelf.expiry is not None:
                shelf.expiry.cancel()
        for box, *_ in list(self._lent.values()):
            await self.give_back(box)
        await self._removal.join()
        await self._supervisor.let_go()

    # Waiting

    async def _from(self, shelf: _Shelf) -> Box | None:
        """Take a live box off the shelf; None if there is none."""
        shelf.asked_at = time.monotonic()
        if shelf.expiry is None:
            self._watch(shelf, self.keep_s)
        while shelf.ready:
            box, since = shelf.ready.popleft()
            try:
                if time.monotonic() - since < self.stale_s or await _answers(box):
                    return box
            except asyncio.CancelledError:
                self._removal.begin(box.ident, box)
                raise
            self._removal.begin(box.ident, box, "it died on its shelf")
        return None

    async def _wait(self, wanted: _Wanted) -> Box:
        self._line.append(wanted)
        self._pump()
        try:
            return await wanted.box
        except asyncio.CancelledError:
            # A box that arrived together with the cancellation is passed on, not leaked.
            if wanted.box.done() and not wanted.box.cancelled() and not wanted.box.exception():
                self._started(wanted.shelf, None, wanted.box.result())
            raise
        finally:
            with suppress(ValueError):
                self._line.remove(wanted)

    # Starting

    def _pump(self) -> None:
        """Start the boxes that are needed, at most `starts` at once."""
        while not self._over and self._starting < self._starts:
            wanted = self._next_wanted()
            shelf = wanted.shelf if wanted else self._next_shelf()
            if wanted is None and shelf is None:
                return
            self._starting += 1
            if wanted is not None:
                wanted.started = True
            if shelf is not None:
                shelf.starting += 1
            spec = wanted.spec if wanted else shelf.spec if shelf else Spec()
            task = asyncio.create_task(self._start(spec, shelf, wanted), name="box start")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_wanted(self) -> _Wanted | None:
        """Return the first waiting borrower for which no box is being started."""
        # A box that starts for a shelf goes to the shelf's first waiting borrower, so it counts.
        under_way = {id(shelf): shelf.starting for shelf in self._shelves.values()}
        for wanted in self._line:
            if wanted.box.done() or (wanted.shelf is None and wanted.started):
                continue
            if wanted.shelf is not None and under_way[id(wanted.shelf)] > 0:
                under_way[id(wanted.shelf)] -= 1
                continue
            return wanted
        return None

    def _next_shelf(self) -> _Shelf | None:
        """Return a shelf with fewer boxes than it may have, the most recently used first."""
        seats = self.warm  # shared by all shelves
        chosen = None
        shelves = sorted(self._shelves.values(), key=lambda each: each.asked_at, reverse=True)
        for shelf in shelves:
            most = min(seats, shelf.peak)
            seats -= most
            self._empty(shelf, most)
            if chosen is None and len(shelf.ready) + shelf.starting < most:
                chosen = shelf
        return chosen

    async def _start(self, spec: Spec, shelf: _Shelf | None, wanted: _Wanted | None) -> None:
        ident = self.leases.draw()
        began = time.monotonic()
        mode: Mode = "persistent" if shelf else "ephemeral"
        box: Box | None = None
        try:
            self.leases.take(ident, self.driver.name)
            self._notes.note("starting", ident, spec, mode)
            if self.driver.kept:
                await self._supervisor.hold()
            box = await self._open(spec, ident)
            if wanted is None and not await _answers(box):
                msg = "it died as soon as it had started"
                raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)
        except asyncio.CancelledError:
            self._removal.begin(ident, box, made=False)
            raise
        except Exception as error:
            self._notes.note("failed", ident, spec, mode, reason=str(error))
            self._removal.begin(ident, box, made=False)
            self._failed(shelf, wanted, error)
        else:
            self._notes.note("ready", ident, spec, mode, took_s=time.monotonic() - began)
            self._started(shelf, wanted, box)
        finally:
            self._starting -= 1
            if shelf is not None:
                shelf.starting -= 1
            self._pump()

    async def _open(self, spec: Spec, ident: str) -> Box:
        within_s = self.start_s + (spec.build.timeout_s if spec.build else 0.0)
        try:
            async with asyncio.timeout(within_s):
                return await self.driver.open(spec, ident)
        except TimeoutError as error:
            msg = f"a box of driver {self.driver.name!r} did not start within {within_s:g} s"
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True) from error

    def _started(self, shelf: _Shelf | None, wanted: _Wanted | None, box: Box) -> None:
        """Give a box to the borrower that has waited longest for one like it, else shelve it."""
        first = self._first(shelf, wanted)
        if first is not None:
            first.box.set_result(box)
        else:
            self._put_away(shelf, box)

    def _failed(self, shelf: _Shelf | None, wanted: _Wanted | None, error: Exception) -> None:
        """Fail the first waiting borrower; without one, start no more until the next request."""
        first = self._first(shelf, wanted)
        if first is not None:
            first.box.set_exception(error)
        elif shelf is not None:
            shelf.peak = 0
        log.warning("box_not_started", driver=self.driver.name, error=str(error))

    def _first(self, shelf: _Shelf | None, wanted: _Wanted | None) -> _Wanted | None:
        """Return the longest waiting borrower of a shelf, or the one a box was started for."""
        waiting = [each for each in self._line if each.shelf is shelf] if shelf else [wanted]
        return next((each for each in waiting if each and not each.box.done()), None)

    def _put_away(self, shelf: _Shelf | None, box: Box) -> None:
        """Put a box on its shelf; remove it if it has none or the pool is closed."""
        if shelf is None or self._over:
            self._removal.begin(box.ident, box)
        else:
            shelf.ready.append((box, time.monotonic()))
            self._pump()

    # Ending

    def _watch(self, shelf: _Shelf, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        shelf.expiry = loop.call_later(after_s, self._expire, shelf)

    def _expire(self, shelf: _Shelf) -> None:
        """Empty and forget a shelf without recent requests, unless boxes are lent or starting."""
        left_s = shelf.asked_at + self.keep_s - time.monotonic()
        if left_s > 0 or shelf.lent or shelf.starting:
            self._watch(shelf, max(left_s, self.keep_s / 10))
            return
        self._empty(shelf, 0)
        self._shelves = {key: each for key, each in self._shelves.items() if each is not shelf}

    def _empty(self, shelf: _Shelf, most: int) -> None:
        """Remove the oldest boxes of a shelf until it has at most `most`."""
        while len(shelf.ready) > most:
            box, _ = shelf.ready.popleft()
            self._removal.begin(box.ident, box)

    def _shelf_of(self, spec: Spec) -> _Shelf:
        key = spec.image, spec.limits, spec.network, spec.writable
        return self._shelves.setdefault(key, _Shelf(spec))


async def _answers(box: Box) -> bool:
    """Return True if a box is alive and has a shell ready."""
    try:
        await box.stand_by(ANSWER_S)
    except Exception as error:
        log.warning("box_died_unused", box_id=box.ident, error=str(error))
        return False
    return True


def _is_plain(spec: Spec) -> bool:
    """Return True if any other box of its image and limits can replace it."""
    return not spec.mounts and not spec.env
