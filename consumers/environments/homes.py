"""Where sessions live: those of environments that wait in the room, all others on threads.

Which it is depends on an environment's name alone, and is found out once for each: the module
behind it is imported on a thread of its own, for what others wrote may hang. Steps that come
meanwhile wait, in order.
"""

import threading
import time
from collections.abc import Callable, Iterable

from consumers.environments.session_thread import Give, Work
from consumers.environments.waiting_sessions import WaitingSessions
from consumers.environments.watched_threads import WatchedThreads
from sandbox.at_once import at_once
from sandbox.environment import Kind
from schemas.errors import RollcallError
from schemas.messages import CallFailed


class Kinds:
    """What is known of environments, by name."""

    def __init__(self, look: Callable[[str], Kind]) -> None:
        self._look = look
        self._known: dict[str, Kind] = {}

    def known(self, name: str) -> Kind | None:
        return self._known.get(name)

    def find(self, name: str) -> Kind:
        """Look behind a name; where nothing is found it does not wait, and its step says why."""
        try:
            kind = self._known[name] = self._look(name)
        except RollcallError:
            return Kind()
        return kind

    def of(self, name: str) -> Kind:
        """What is known, or else can be found."""
        return self._known.get(name) or self.find(name)


class Lookup:
    """What is being found out about one name, and the steps that wait for it, since when."""

    def __init__(self, kinds: Kinds, name: str) -> None:
        self.name = name
        self.waiting: list[tuple[Work, float]] = []
        self.found = Kind()
        self._kinds = kinds
        self._thread = threading.Thread(target=self._find, name="lookup", daemon=True)
        self._thread.start()

    def _find(self) -> None:
        self.found = self._kinds.find(self.name)

    def over(self) -> bool:
        return not self._thread.is_alive()


class Homes:
    """Hands each step to where its session lives; all here is on the loop's thread.

    `threaded=False`: what is behind a name is looked up on the spot.
    """

    def __init__(
        self,
        give: Give,
        threads: WatchedThreads,
        waiting: WaitingSessions,
        kinds: Kinds,
        *,
        threaded: bool,
    ) -> None:
        self.give = give
        self.threads = threads
        self.waiting = waiting
        self.kinds = kinds
        self._threaded = threaded
        self._lookups: dict[str, Lookup] = {}

    def hand_out(self, works: Iterable[Work]) -> None:
        """Give each to its home; those whose home is not known yet wait here."""
        plain: list[Work] = []
        waiting: list[Work] = []
        for work in works:
            kind = self._kind_of(work)
            if kind is not None:
                (waiting if kind.waits else plain).append(work)
        self.threads.hand_out(plain)
        if waiting:
            self.waiting.hand_out(waiting)

    def _kind_of(self, work: Work) -> Kind | None:
        """None: it is being found out, and the step waits for that."""
        name = work.step.environment
        kind = self.kinds.known(name)
        if kind is not None and name not in self._lookups:
            return kind
        if not self._threaded:
            return self.kinds.find(name)
        if name not in self._lookups:
            self._lookups[name] = Lookup(self.kinds, name)
        self._lookups[name].waiting.append((work, time.monotonic()))
        return None

    def drop(self, partition: int) -> None:
        """End the sessions of a partition that is another worker's now."""
        self.threads.everywhere(lambda sessions: at_once(sessions.drop(partition)))
        self.waiting.drop(partition)

    def unfinished(self) -> int:
        """What was asked for and is not done."""
        looked_up = sum(len(lookup.waiting) for lookup in self._lookups.values())
        return self.threads.unfinished() + self.waiting.unfinished() + looked_up

    def watch(self) -> None:
        """See to it that whatever hangs holds up nobody else."""
        for lookup in list(self._lookups.values()):
            if lookup.over():
                del self._lookups[lookup.name]
                home = self.waiting if lookup.found.waits else self.threads
                home.hand_out([work for work, _ in lookup.waiting])
            else:
                self._expire(lookup, time.monotonic())
        self.threads.watch()
        self.waiting.watch()

    def _expire(self, lookup: Lookup, now: float) -> None:
        """Answer for steps whose time passes while what is behind their name is imported."""
        late = [work for work, since in lookup.waiting if now - since > work.timeout_s]
        for work in late:
            msg = f"environment {lookup.name!r} is being imported for more than "
            msg += f"{work.timeout_s:g} s"
            if work.claim():
                self.give(work.step, CallFailed("deadline", msg, True), work.record)
        if late:
            lookup.waiting = [pair for pair in lookup.waiting if pair[0] not in late]

    def leave(self, *, patient: bool) -> None:
        """The worker takes nothing more; those that wait may have processes, which end at once."""
        self.waiting.leave(patient=patient)

    def close(self) -> None:
        """The worker leaves: end what would outlive it."""
        self.waiting.close()
