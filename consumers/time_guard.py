"""Ends a user's code that does not come back: agent programs, scorers, environments of the loop.

Such code runs on the loop's thread, so it would stop the worker. A thread watches the time and
signals the main thread, whose handler raises inside the code, also out of a sleep. Code that
swallows the first exception meets the next one at every turn it takes, in its own handlers too,
until it has let go. What no exception reaches (one long call into C) is left to the loop's own
watch, which ends the process. Only what runs on the main thread can be watched.
"""

import _thread
import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from schemas.errors import ProgramFailed

SIGNAL = signal.SIGUSR1
MOST = 100_000
"""So often code is told to stop at every turn; what clings to that is told now and then."""


WATCH_S = 1.0
"""Between two looks whether somebody is overdue, at most."""


class Bar:
    """A guard around another that lets no code run while there is a reason: it kills workers."""

    def __init__(self, guard: AbstractContextManager[object]) -> None:
        self._enter, self._leave = guard.__enter__, guard.__exit__
        self.reason = ""
        """Whoever enters while this is not empty gets ProgramFailed(`killed_worker`)."""

    def __enter__(self) -> None:
        if self.reason:
            raise ProgramFailed("killed_worker", self.reason)
        self._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(kind, error, traceback)


class Guard:
    """A context around each turn of foreign code; ProgramFailed(`stuck`) comes out of it."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        self._since: float | None = None
        self._raised = 0
        """How often it was told to stop since it was entered."""

    def watch(self) -> None:
        """Begin to watch; call it once, on the main thread."""
        WATCHED.append(self)
        signal.signal(SIGNAL, _interrupt)
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def within(self, timeout_s: float) -> "Guard":
        """The same, for a call that may take so long."""
        self.timeout_s = timeout_s
        return self

    def __enter__(self) -> None:
        self._raised = 0
        self._since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What was told to stop is stuck, whatever it made of that."""
        self._since = None
        if self._raised and not isinstance(error, KeyboardInterrupt):
            raise self._stuck() from error

    def _stuck(self) -> ProgramFailed:
        return ProgramFailed("stuck", f"{self.what} did not come back within {self.timeout_s:g} s")

    def _overdue(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since > self.timeout_s

    def _watch(self) -> None:
        main = threading.main_thread().ident
        while main is not None:
            time.sleep(min(self.timeout_s / 4, WATCH_S))
            if self._overdue():
                signal.pthread_kill(main, SIGNAL)

    def _tell(self) -> None:
        """Raise in what is overdue, now and at its next turn."""
        if not self._overdue():
            return
        self._raised += 1
        stuck = self._stuck()
        if 1 < self._raised < MOST:
            # Pending once more when the code goes on. No call may follow: it would be handled here.
            for _ in map(_thread.interrupt_main, (SIGNAL,)):
                raise stuck
        raise stuck


WATCHED: list[Guard] = []
"""Those of this process; one of them is entered at a time, on the main thread."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    if frame is None or frame.f_code not in LEAVING:
        for guard in WATCHED:
            guard._tell()


LEAVING = {Guard.__exit__.__code__, Bar.__exit__.__code__}
"""Where the code has let go already, and nobody is told to stop any more."""
