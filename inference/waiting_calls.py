"""Calls that an engine has not begun with: those that may begin, and those held for new weights."""

from collections import deque
from collections.abc import Iterator

from schemas.messages import ModelCall


class WaitingCalls:
    """In order of their coming; calls that were held for a version come before all others."""

    def __init__(self) -> None:
        self.ready: deque[ModelCall] = deque()
        self._held: list[ModelCall] = []

    def __iter__(self) -> Iterator[ModelCall]:
        """All of them, in the order in which they would begin."""
        yield from self.ready
        yield from self._held

    def add(self, call: ModelCall, version: int) -> None:
        """Let a call wait for its turn, or for weights that are newer than `version`."""
        if call.min_policy_version > version:
            self._held.append(call)
        else:
            self.ready.append(call)

    def release(self, version: int) -> None:
        """Let begin what was held for this version or one before."""
        held, self._held = self._held, []
        first = [call for call in held if call.min_policy_version <= version]
        self._held = [call for call in held if call.min_policy_version > version]
        self.ready.extendleft(reversed(first))

    def expire(self, now_ms: int) -> list[ModelCall]:
        """Forget the calls that may not begin any more; return them."""
        late = [c for c in (*self.ready, *self._held) if c.not_after_ms < now_ms]
        if late:
            self.ready = deque(c for c in self.ready if c.not_after_ms >= now_ms)
            self._held = [c for c in self._held if c.not_after_ms >= now_ms]
        return late

    def abort(self, rollout_id: str, attempt: int) -> None:
        """Forget the rollout's calls of this attempt and of those before."""
        self.ready = deque(c for c in self.ready if not is_of(c, rollout_id, attempt))
        self._held = [c for c in self._held if not is_of(c, rollout_id, attempt)]


def is_of(call: ModelCall, rollout_id: str, attempt: int) -> bool:
    """Whether a call is the rollout's, of this attempt or of one before."""
    return call.rollout_id == rollout_id and call.attempt <= attempt
