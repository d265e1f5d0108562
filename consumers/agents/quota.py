"""How many rollouts of one user run at once in one worker.

A quota delays a rollout's first command, never its start: what is accepted is in the journal.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice

from consumers.agents.fold.rollout import Rollout


class Quota:
    """Rollouts that run and rollouts that wait, by user; `most` 0 lets all run."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[int] = Counter()
        """Rollouts that wait, by partition."""
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Rollout, None]] = {}
        """By user, in order of their starts."""
        self._vacant: set[str] = set()

    def admit(self, rollout: Rollout) -> bool:
        """Let a rollout run, or have it wait for its turn."""
        who = rollout.request.user
        if self.most and self._running[who] >= self.most:
            self._waiting.setdefault(who, OrderedDict())[rollout] = None
            self.held[rollout.partition] += 1
            return False
        self._run(rollout)
        return True

    def _run(self, rollout: Rollout) -> None:
        self._running[rollout.request.user] += 1
        rollout.admitted = True

    def leave(self, rollout: Rollout) -> None:
        """A rollout has ended, or belongs to another worker now."""
        who = rollout.request.user
        if rollout.admitted:
            rollout.admitted = False
            self._running[who] -= 1
            self._vacant.add(who)
        elif rollout in self._waiting.get(who, ()):
            del self._waiting[who][rollout]
            self.held[rollout.partition] -= 1

    def ready(self) -> Iterator[Rollout]:
        """Those whose turn has come, admitted."""
        while self._vacant:
            who = self._vacant.pop()
            vacant = max(0, self.most - self._running[who])
            for rollout in list(islice(self._waiting.get(who, ()), vacant)):
                del self._waiting[who][rollout]
                self.held[rollout.partition] -= 1
                self._run(rollout)
                yield rollout
