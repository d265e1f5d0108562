"""The end of a worker: at SIGTERM or SIGINT, when a `drain` on `control` names it, and when its
broker was taken down for good. If its object store is unreachable, its loop is restarted instead.
"""

import faulthandler
import signal
import time
from collections.abc import Callable
from types import FrameType

import structlog

from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.errors import Unavailable

LISTEN_EVERY_S = 1.0

log = structlog.get_logger()


class Drained:
    """A flag that turns true when a worker is asked to drain; earlier requests do not count."""

    def __init__(
        self, name: str, control: ControlReader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._control = control
        self._clock = clock
        self._due = 0.0
        self._asked = False

    def __call__(self) -> bool:
        if not self._asked and self._clock() >= self._due:
            self._due = self._clock() + LISTEN_EVERY_S
            self.listen()
        return self._asked

    def listen(self, timeout_s: float = 0.0) -> bool:
        """Read new control records now, even if the next read is not due."""
        words = [word for _, word in self._control.poll(timeout_s)]
        if any(word.kind == "drain" and word.worker == self._name for word in words):
            self._asked = True
            log.info("drain_requested", worker=self._name)
        return self._asked


class Stop:
    """A flag that turns true once the worker must leave; it then exits with code 0."""

    def __init__(
        self,
        drained: Callable[[], bool] = lambda: False,
        taken_down: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drained = drained
        self._taken_down = taken_down
        self._clock = clock
        self._due = 0.0
        self._at_once = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._at_once = True

    def __call__(self) -> bool:
        self._look()
        return self._at_once or self._drained()

    def patient(self) -> bool:
        """Return True if work in flight may finish: a drained worker completes all of it."""
        self._look()
        return not self._at_once

    def _look(self) -> None:
        if self._at_once or self._clock() < self._due:
            return
        self._due = self._clock() + LISTEN_EVERY_S
        if self._taken_down():
            self._at_once = True
            log.warning("broker_taken_down")


RETRY_S = 5.0


def run_with_restarts(
    begin: Callable[[], Loop],
    stopping: Callable[[], bool],
    *,
    patient: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Run a loop until told to stop; after Unavailable, end it and make a new one."""
    said = ""
    while not stopping():
        loop: Loop | None = None
        try:
            loop = begin()
            loop.run(stopping, patient=patient)
        except Unavailable as error:
            if str(error) != said:
                log.warning("worker_restarts_later", error=str(error), retry_s=RETRY_S)
            said = str(error)
            if loop is not None:
                _let_go(loop)
            pause(RETRY_S)


def _let_go(loop: Loop) -> None:
    """Leave the group; finished work is committed, and no record is blamed for the failure."""
    faulthandler.cancel_dump_traceback_later()
    loop.source.close()
    loop.role.close()
