"""When a worker leaves: at SIGTERM, at SIGINT, when a `drain` on `control` names it, and when its
broker was taken down for good.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType

import structlog

from consumers.control_reader import ControlReader

LISTEN_EVERY_S = 1.0

log = structlog.get_logger()


class Drained:
    """Becomes true when one worker is asked to drain; what was said before it was made is past."""

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
        """Hear what has come, whether that is due or not."""
        words = [word for _, word in self._control.poll(timeout_s)]
        if any(word.kind == "drain" and word.worker == self._name for word in words):
            self._asked = True
            log.info("drain_asked", worker=self._name)
        return self._asked


class Stop:
    """Becomes true once the worker is to leave; it then exits with code 0."""

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
        """Whether work in flight may take its time: a drained worker ends all of it."""
        self._look()
        return not self._at_once

    def _look(self) -> None:
        if self._at_once or self._clock() < self._due:
            return
        self._due = self._clock() + LISTEN_EVERY_S
        if self._taken_down():
            self._at_once = True
            log.warning("broker_taken_down")
