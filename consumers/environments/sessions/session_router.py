"""Choice of a session's place: the event loop for environments that wait, a thread for others.

It depends only on the environment's name, and is looked up once per name. The module of the
environment is imported on a separate thread, since user code may hang. Steps that arrive meanwhile
are queued in order.
"""

import threading
import time
from collections.abc import Callable, Iterable

from rollcall.consumers.environments.sessions.async_sessions import AsyncSessions
from rollcall.consumers.environments.sessions.session_step import Give, SessionStep
from rollcall.consumers.environments.sessions.watched_threads import WatchedThreads
from rollcall.sandbox.environment import EnvironmentKind
from rollcall.sandbox.run_inline import run_inline
from rollcall.schemas.errors import FailureCode, RollcallError
from rollcall.schemas.messages import CallFailed


class EnvironmentKinds:
    """The kinds of environments, by name."""

    def __init__(self, look: Callable[[str], EnvironmentKind]) -> None:
        self._look = look
        self.known: dict[str, EnvironmentKind] = {}

    def of(self, name: str) -> EnvironmentKind:
        """Return the known kind, or look it up; without one it does not wait: its step says why."""
        if name not in self.known:
            try:
                self.known[name] = self._look(name)
            except RollcallError:
                return EnvironmentKind()
        return self.known[name]


class KindLookup:
    """A lookup of one name in progress, and the steps that wait for it, with their times."""

    def __init__(self, kinds: EnvironmentKinds, name: str) -> None:
        self.waiting: list[tuple[SessionStep, float]] = []
        self.found = EnvironmentKind()

        def find() -> None:
            self.found = kinds.of(name)

        self._thread = threading.Thread(target=find, name="lookup", daemon=True)
        self._thread.start()

    def over(self) -> bool:
        return not self._thread.is_alive()


class SessionRouter:
    """Hands each step to the place of its session; runs on the loop's thread.

    With `threaded=False` a name is looked up at once, on this thread.
    """

    def __init__(
        self,
        give: Give,
        threads: WatchedThreads,
        waiting: AsyncSessions,
        kinds: EnvironmentKinds,
        *,
        threaded: bool,
    ) -> None:
        self.give = give
        self.threads = threads
        self.waiting = waiting
        self.kinds = kinds
        self._threaded = threaded
        self._lookups: dict[str, KindLookup] = {}

    def dispatch(self, works: Iterable[SessionStep]) -> None:
        """Hand out steps; queue those whose environment is being looked up."""
        plain: list[SessionStep] = []
        waiting: list[SessionStep] = []
        for work in works:
            kind = self._kind_of(work)
            if kind is not None:
                (waiting if kind.waits else plain).append(work)
        self.threads.dispatch(plain)
        if waiting:
            self.waiting.dispatch(waiting)

    def _kind_of(self, work: SessionStep) -> EnvironmentKind | None:
        """Return the kind; None if it is being looked up, with the step queued."""
        name = work.step.environment
        if not self._threaded or (name in self.kinds.known and name not in self._lookups):
            return self.kinds.of(name)
        if name not in self._lookups:
            self._lookups[name] = KindLookup(self.kinds, name)
        self._lookups[name].waiting.append((work, time.monotonic()))
        return None

    def drop(self, partition: int) -> None:
        """End the sessions of a partition that was reassigned to another worker."""
        self.threads.everywhere(lambda sessions: run_inline(sessions.drop(partition)))
        self.waiting.drop(partition)

    def unfinished(self) -> int:
        """Count the steps that are not done."""
        looked_up = sum(len(lookup.waiting) for lookup in self._lookups.values())
        return self.threads.unfinished() + self.waiting.unfinished() + looked_up

    def watch(self) -> None:
        """Limit the effects of hanging lookups, threads and sessions on others."""
        for name, lookup in list(self._lookups.items()):
            if lookup.over():
                del self._lookups[name]
                home = self.waiting if lookup.found.waits else self.threads
                home.dispatch([work for work, _ in lookup.waiting])
            else:
                self._expire(name, lookup, time.monotonic())
        self.threads.watch()
        self.waiting.watch()

    def _expire(self, name: str, lookup: KindLookup, now: float) -> None:
        """Answer steps that reach their timeout while their environment is being imported."""
        late = [work for work, since in lookup.waiting if now - since > work.timeout_s]
        for work in late:
            msg = f"environment {name!r} is being imported for more than {work.timeout_s:g} s"
            if work.claim():
                self.give(work.step, CallFailed(FailureCode.DEADLINE, msg, True), work.record)
        if late:
            lookup.waiting = [pair for pair in lookup.waiting if pair[0] not in late]

    def leave(self, *, patient: bool) -> None:
        """Take no more work; async sessions may own processes, so they end at once."""
        self.waiting.leave(patient=patient)

    def close(self) -> None:
        """End what would outlive the worker."""
        self.waiting.close()
