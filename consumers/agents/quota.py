"""How many rollouts of one user run at once in one worker.

A quota delays a rollout's first command, never its start: what is accepted is in the journal.
"""

from collections import Counter, deque
from collections.abc import Iterator

from consumers.agents.fold import Rollout


class Quota:
    """Rollouts that run and rollouts that wait, by user; `most` 0 lets all run."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Rollout]] = {}
        self._vacant: set[str] = set()

    def admit(self, rollout: Rollout) -> bool:
        """Let a rollout run, or have it wait for its turn."""
        who = rollout.request.user
        if self.most and self._running[who] >= self.most:
            self._waiting.setdefault(who, deque()).append(rollout)
            return False
        self._running[who] += 1
        rollout.admitted = True
        return True

    def leave(self, rollout: Rollout) -> None:
        """A rollout has ended, or belongs to another worker now."""
        who = rollout.request.user
        if rollout.admitted:
            rollout.admitted = False
            self._running[who] -= 1
            self._vacant.add(who)
        elif rollout in self._waiting.get(who, ()):
            self._waiting[who].remove(rollout)

    def ready(self) -> Iterator[Rollout]:
        """Those whose turn has come, admitted."""
        while self._vacant:
            who = self._vacant.pop()
            waiting = self._waiting.get(who)
            while waiting and self._running[who] < self.most:
                rollout = waiting.popleft()
                self._running[who] += 1
                rollout.admitted = True
                yield rollout
