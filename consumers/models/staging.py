"""Weights on their way into one engine, on a thread beside the loop's where there is one."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from inference.engine import Engine
from schemas.messages import PolicyVersion


@dataclass(eq=False)
class Staging:
    """One version at a time; by the loop's own thread it is staged before `begin` returns.

    Reading and decoding the weights of a real model takes seconds, in which the engine goes on to
    answer; what is left for the loop's thread is the swap and the canary.
    """

    engine: Engine
    thread: Executor
    version: PolicyVersion | None = None
    """What is being staged, or was, and waits for `adopt`."""
    _done: Future[None] | None = field(default=None, repr=False)

    def begin(self, version: PolicyVersion) -> None:
        """Stage this one; to be called when the one before was adopted."""
        self.version = version
        self._done = self.thread.submit(self.engine.stage, version)

    def ready(self) -> bool:
        """Whether `adopt` would not have to wait for another thread."""
        return self._done is None or self._done.done()

    def adopt(self) -> None:
        """Put the version in service; raises what `Engine.stage` and `Engine.adopt` raise."""
        done, self._done, self.version = self._done, None, None
        if done is not None:
            done.result()
        self.engine.adopt()
