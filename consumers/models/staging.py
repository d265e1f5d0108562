"""Staging of weights for one engine, on a thread beside the loop's if there is one."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from rollcall.inference.engine import Engine
from rollcall.schemas.messages import PolicyVersion


@dataclass(eq=False)
class Staging:
    """Stages one version at a time; without a thread it is staged before `begin` returns.

    Reading and decoding the weights of a real model takes seconds, while the engine continues to
    answer; only the swap and the canary run on the loop's thread.
    """

    engine: Engine
    thread: Executor
    version: PolicyVersion | None = None
    """The version that is being staged, or waits for `adopt`."""
    _done: Future[None] | None = field(default=None, repr=False)

    def begin(self, version: PolicyVersion) -> None:
        """Stage this version, after the one before was adopted."""
        self.version = version
        self._done = self.thread.submit(self.engine.stage, version)

    def ready(self) -> bool:
        """Return True if `adopt` would not wait for another thread."""
        return self._done is None or self._done.done()

    def adopt(self) -> None:
        """Put the version in service. Raises the errors of `Engine.stage` and `Engine.adopt`."""
        done, self._done, self.version = self._done, None, None
        if done is not None:
            done.result()
        self.engine.adopt()
