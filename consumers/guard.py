"""Ends a user's code that does not come back: agent programs and scorers.

Such code runs on the loop's thread, so it would stop the worker. A thread watches the time and
signals the main thread, whose handler raises inside the code, also out of a sleep. Off the main
thread (tests, `--log memory`) nothing is watched.
"""

import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from schemas.errors import ProgramFailed

SIGNAL = signal.SIGUSR1


class Bar:
    """A guard around another that lets no code run while there is a reason: it kills workers."""

    def __init__(self, guard: AbstractContextManager[object]) -> None:
        self._guard = guard
        self.reason = ""
        """Whoever enters while this is not empty gets ProgramFailed(`killed_worker`)."""

    def __enter__(self) -> None:
        if self.reason:
            raise ProgramFailed("killed_worker", self.reason)
        self._guard.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._guard.__exit__(kind, error, traceback)


class Guard:
    """A context around each turn of foreign code; raises ProgramFailed(`stuck`) inside it."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        self._since: float | None = None

    def watch(self) -> None:
        """Begin to watch; call it once, on the main thread."""
        signal.signal(SIGNAL, self._interrupt)
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._since = None

    def _overdue(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since > self.timeout_s

    def _watch(self) -> None:
        main = threading.main_thread().ident
        while main is not None:
            time.sleep(self.timeout_s / 4)
            if self._overdue():
                signal.pthread_kill(main, SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._overdue():
            self._since = None
            msg = f"{self.what} did not come back within {self.timeout_s:g} s"
            raise ProgramFailed("stuck", msg)
