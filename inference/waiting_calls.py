"""The calls that an engine has not begun: those that may begin, and those held for new weights."""

from collections import deque
from collections.abc import Iterator

from rollcall.schemas.messages import ModelCall


class WaitingCalls:
    """A queue of calls in order of arrival; those released by a version come before all others."""

    def __init__(self) -> None:
        self.ready: deque[ModelCall] = deque()
        self._held: list[ModelCall] = []

    def __iter__(self) -> Iterator[ModelCall]:
        """Iterate over all of them, in the order in which they would begin."""
        yield from self.ready
        yield from self._held

    def add(self, call: ModelCall, version: int) -> None:
        """Queue a call, or hold it if it needs weights newer than `version`."""
        if call.min_policy_version > version:
            self._held.append(call)
        else:
            self.ready.append(call)

    def release(self, version: int) -> None:
        """Release the calls that were held for this version or an earlier one."""
        held, self._held = self._held, []
        first = [call for call in held if call.min_policy_version <= version]
        self._held = [call for call in held if call.min_policy_version > version]
        self.ready.extendleft(reversed(first))

    def expire(self, now_ms: int) -> list[ModelCall]:
        """Drop the calls whose deadline to begin has passed; return them."""
        late = [c for c in (*self.ready, *self._held) if c.not_after_ms < now_ms]
        if late:
            self.ready = deque(c for c in self.ready if c.not_after_ms >= now_ms)
            self._held = [c for c in self._held if c.not_after_ms >= now_ms]
        return late

    def abort(self, rollout_id: str, attempt: int) -> None:
        """Drop the rollout's calls of this attempt and of earlier ones."""
        self.ready = deque(c for c in self.ready if not is_of(c, rollout_id, attempt))
        self._held = [c for c in self._held if not is_of(c, rollout_id, attempt)]


def is_of(call: ModelCall, rollout_id: str, attempt: int) -> bool:
    """Return True if a call is the rollout's, of this attempt or an earlier one."""
    return call.rollout_id == rollout_id and call.attempt <= attempt
