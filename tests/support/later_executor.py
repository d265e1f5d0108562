"""An executor that does nothing by itself: work is done when a test, or whoever waits, says so."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Died(BaseException):
    """Where a test lets a process die: no error that a store, or anything, may wait for."""


class LaterFuture(Future[Any]):
    """Its work is done at the latest when its result is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        """Do the work, once."""
        if not self.done():
            try:
                self.set_result(self.work())
            except (Exception, Died) as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)


class LaterExecutor(Executor):
    """Remembers what was submitted, in order."""

    def __init__(self) -> None:
        self.submitted: list[LaterFuture] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted.append(LaterFuture(lambda: fn(*args, **kwargs)))
        return self.submitted[-1]

    def run_all(self) -> None:
        """Do all that was submitted and not done."""
        for future in self.submitted:
            future.run()
