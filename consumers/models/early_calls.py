"""Calls that cannot begin yet, because the weights that they need are missing; and token sequences
that calls continue by a digest, so that they are not sent whole again.

Early calls do not count against calls that can begin. So they have their own bounds: the version
that a call may wait for, and the number of waiting calls. A call beyond these is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from rollcall.consumers.log.protocols import Record
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import LONG_PREFIX, prefix_digest
from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall

MOST_AHEAD = 1000
"""Versions above the newest that a call may wait for. A trainer asks for the next one, or for a
few more if it has taken steps that no server has read of."""
MOST_EARLY = 2000
"""Limit over all partitions; if so many wait for announced versions, no more are taken."""


@dataclass
class EarlyCalls:
    """The early calls of one server, each with its record."""

    most: int = MOST_EARLY
    _calls: list[tuple[Record, ModelCall]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._calls)

    def of(self, partition: int) -> int:
        """Count the calls from a partition."""
        return sum(record.partition == partition for record, _ in self._calls)

    def full(self) -> bool:
        """Return True if there are too many, all of which want announced versions."""
        return len(self._calls) > self.most

    def add(
        self, record: Record, call: ModelCall, newest: int
    ) -> tuple[Record, ModelCall, CallFailed] | None:
        """Add a call; if there are too many, return the one to refuse.

        That is the one that wants the highest version, if this is not announced.
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
        return leaving, its_call, CallFailed(FailureCode.VERSION_AWAITED, msg, True)

    def drain(self) -> Iterator[tuple[Record, ModelCall]]:
        """Remove and yield all of them, to be tried again."""
        calls, self._calls = self._calls, []
        yield from calls

    def abort(self, gone: Callable[[ModelCall], bool]) -> None:
        """Drop the calls of aborted rollouts; their records are closed without an answer."""
        for record, call in self._calls:
            record.closed = record.closed or gone(call)
        self._calls = [(record, call) for record, call in self._calls if not record.closed]


def wanted_by(call: ModelCall) -> int:
    """Return the lowest version that a call accepts."""
    return max(call.policy_version, call.min_policy_version)


def too_far(call: ModelCall, newest: int) -> CallFailed | None:
    """Return the refusal of a call for a version that will not come; None if it may come."""
    wanted = wanted_by(call)
    if wanted <= max(0, newest) + MOST_AHEAD:
        return None
    msg = (
        f"version {wanted} of {call.policy_id!r} is wanted, and the newest is {newest}: no call "
        f"waits for one that is more than {MOST_AHEAD} ahead"
    )
    return CallFailed(FailureCode.VERSION_UNREACHABLE, msg, False)


PREFIX_BYTES = 256 << 20
"""Memory for the sequences that were answered last: 2,000 of 32,768 tokens."""


class HeldPrefixes:
    """The sequences that one server holds."""

    def __init__(self) -> None:
        self._held: AnswerCache[bytes] = AnswerCache(PREFIX_BYTES)

    def __len__(self) -> int:
        return len(self._held)

    def filled(self, call: ModelCall) -> ModelCall | CallFailed:
        """Return the call with the tokens that it names, or a failure if they are not held here."""
        if call.prefix_ids is not None or not call.prefix_length:
            return call
        ids = self._held.get(call.prefix_digest)
        if ids is None or len(ids) != 4 * call.prefix_length:
            msg = f"a prefix of {call.prefix_length} tokens is not held here; send it whole"
            return CallFailed(FailureCode.PREFIX_NEEDED, msg, True)
        return replace(call, prefix_ids=ids)

    def keep(self, call: ModelCall, body: ModelAnswered) -> None:
        """Keep an extended sequence, in place of its prefix.

        Short ones are never named, and a call without sampled tokens extends nothing.
        """
        before, added, sampled = call.prefix_ids or b"", body.added_ids, body.token_ids
        long = len(before) + len(added) + len(sampled) >= 4 * LONG_PREFIX
        if not long or not call.sampling.max_tokens:
            return
        ids = before + added + sampled
        self._held.drop(call.prefix_digest or prefix_digest(before))
        self._held.keep(prefix_digest(ids), ids)
