"""Calls that cannot begin yet: the weights that they want are not there.

They count against nobody who can begin. So there are bounds on them alone: which version a call may
hope for, and how many may hope at once. A call beyond these fails by name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from consumers.log.protocols import Record
from schemas.messages import CallFailed, ModelCall

MOST_AHEAD = 1000
"""Versions above the newest that one may wait for. A trainer asks for the next one, or for a few
more where it has taken steps that no server has read of."""
MOST_EARLY = 2000
"""Of all partitions; where so many wait for versions that are announced, nothing more is taken."""


@dataclass
class EarlyCalls:
    """Those of one server, each with the record that holds it."""

    most: int = MOST_EARLY
    _calls: list[tuple[Record, ModelCall]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._calls)

    def of(self, partition: int) -> int:
        """How many came from a partition."""
        return sum(record.partition == partition for record, _ in self._calls)

    def full(self) -> bool:
        """Whether there are too many, of which each wants what is announced."""
        return len(self._calls) > self.most

    def add(
        self, record: Record, call: ModelCall, newest: int
    ) -> tuple[Record, ModelCall, CallFailed] | None:
        """Let a call wait; the one that has to leave for it, if there are too many.

        That is the one that wants the highest version of those that are not announced.
        """
        self._calls.append((record, call))
        if len(self._calls) <= self.most:
            return None
        at = max(range(len(self._calls)), key=lambda at: wanted_by(self._calls[at][1]))
        if wanted_by(self._calls[at][1]) <= newest:
            return None
        leaving, its_call = self._calls.pop(at)
        msg = (
            f"version {wanted_by(its_call)} of {its_call.policy_id!r} is not announced, and "
            f"{self.most} calls wait for versions to come already"
        )
        return leaving, its_call, CallFailed("version_awaited", msg, True)

    def drain(self) -> Iterator[tuple[Record, ModelCall]]:
        """All of them, to be tried again."""
        calls, self._calls = self._calls, []
        yield from calls

    def abort(self, gone: Callable[[ModelCall], bool]) -> None:
        """Forget those that nobody waits for; their records are closed without an answer."""
        for record, call in self._calls:
            record.closed = record.closed or gone(call)
        self._calls = [(record, call) for record, call in self._calls if not record.closed]


def wanted_by(call: ModelCall) -> int:
    """The version that a call waits for, at least."""
    return max(call.policy_version, call.min_policy_version)


def too_far(call: ModelCall, newest: int) -> CallFailed | None:
    """The answer to a call for a version that will not come; None where it may."""
    wanted = wanted_by(call)
    if wanted <= max(0, newest) + MOST_AHEAD:
        return None
    msg = (
        f"version {wanted} of {call.policy_id!r} is wanted, and the newest is {newest}: no call "
        f"waits for one that is more than {MOST_AHEAD} ahead"
    )
    return CallFailed("version_unreachable", msg, False)
