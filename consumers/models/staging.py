"""Weights on their way into one engine, on a thread beside the loop's where there is one."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from inference.engine import Engine
from schemas.messages import PolicyVersion


@dataclass(eq=False)
class Staging:
    """One version at a time; without a `thread` it is staged in the turn that adopts it.

    Reading and decoding the weights of a real model takes seconds, in which the engine goes on to
    answer; what is left for the loop's thread is the swap and the canary.
    """

    engine: Engine
    thread: Executor | None = None
    version: PolicyVersion | None = None
    """What is being staged, or was, and waits for `adopt`."""
    _done: "Future[None] | None" = field(default=None, repr=False)

    def begin(self, version: PolicyVersion) -> None:
        """Stage this one; to be called when the one before was adopted."""
        self.version = version
        self._done = self.thread.submit(self.engine.stage, version) if self.thread else None

    def ready(self) -> bool:
        """Whether `adopt` would not have to wait for another thread."""
        return self._done is None or self._done.done()

    def adopt(self) -> None:
        """Put the version in service; raises what `Engine.stage` and `Engine.adopt` raise."""
        version, self.version = self.version, None
        done, self._done = self._done, None
        if done is not None:
            done.result()
        elif version is not None:
            self.engine.stage(version)
        self.engine.adopt()
