"""Ends user code that hangs: agent programs, scorers, environments of the loop.

Such code runs on the loop's thread, so it would stop the worker. A thread watches the time and
signals the main thread, whose handler raises inside the code, also out of a sleep. Code that
catches the first exception gets another one at every step, in its own handlers too, until it
returns. Code that no exception reaches (one long call into C) is left to the loop's own
watch, which ends the process. Only code on the main thread can be watched.
"""

import _thread
import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from rollcall.schemas.errors import FailureCode, ProgramFailed

SIGNAL = signal.SIGUSR1
MOST = 100_000
"""The number of exceptions at every step; after these, one is raised only at each check."""


WATCH_S = 1.0
"""The longest interval between two checks."""


class PoisonGuard:
    """A guard around another one that runs no code of a program that kills workers."""

    def __init__(self, guard: AbstractContextManager[object]) -> None:
        self._enter, self._leave = guard.__enter__, guard.__exit__
        self.reason = ""
        """The reason to run no code; if set, entering raises ProgramFailed(`killed_worker`)."""

    def __enter__(self) -> None:
        if self.reason:
            raise ProgramFailed(FailureCode.KILLED_WORKER, self.reason)
        self._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(kind, error, traceback)


class TimeGuard:
    """A context around each turn of user code; raises ProgramFailed(`stuck`) if it hangs."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        self._since: float | None = None
        self._raised = 0
        """The number of exceptions raised in the code since it was entered."""

    def watch(self) -> None:
        """Start to watch; call it once, on the main thread."""
        WATCHED.append(self)
        signal.signal(SIGNAL, _interrupt)
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def within(self, timeout_s: float) -> "TimeGuard":
        """Return this guard, with another time limit for the next call."""
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
        """Raise ProgramFailed if the code was interrupted, even if it caught the exception."""
        self._since = None
        if self._raised and not isinstance(error, KeyboardInterrupt):
            raise self._stuck() from error

    def _stuck(self) -> ProgramFailed:
        return ProgramFailed(
            FailureCode.STUCK, f"{self.what} did not come back within {self.timeout_s:g} s"
        )

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
        """Raise in overdue code, now and at its next step."""
        if not self._overdue():
            return
        self._raised += 1
        stuck = self._stuck()
        if 1 < self._raised < MOST:
            # Sends the signal again for the next step. A call after it would handle it here.
            for _ in map(_thread.interrupt_main, (SIGNAL,)):
                raise stuck
        raise stuck


WATCHED: list[TimeGuard] = []
"""The guards of this process; one of them is entered at a time, on the main thread."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    if frame is None or frame.f_code not in LEAVING:
        for guard in WATCHED:
            guard._tell()


LEAVING = {TimeGuard.__exit__.__code__, PoisonGuard.__exit__.__code__}
"""Code that runs after the user code has returned, in which nothing is raised any more."""
