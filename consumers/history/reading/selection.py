"""Reads a range of history, and detects repeated records, of which only the first counts.

Readers of a range do not disturb running work: they join no group, commit nothing, hold one poll in
memory, and slow down while others work, or keep to a given rate (reading of keys alone is not
slowed). The extent is fixed before the first record: from the start to the present end, in order
within each partition. Records written meanwhile are not included.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import (
    Extent,
    Range,
    RolloutRecord,
    extent_of,
    filled_extent,
    policies_of,
    request_of,
    versions_of_policy,
)
from rollcall.consumers.history.reading.rate_limit import RateLimit
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.log.reading import read_between
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from rollcall.schemas.names import hint

NAMED = 5
"""The number of missing ids that a refusal names."""
NEAR = 1000
"""The number of seen names among which a similar one is searched."""

M = TypeVar("M", RolloutRequest, Trajectory, ScoredTrajectory)
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Selection:
    """The records of a range, at a pace; by default at full speed."""

    history: History
    span: Range
    pace: RateLimit = field(default_factory=RateLimit)

    def records(self, topic: str) -> Iterator[Record]:
        """Return a topic's records within the offsets and times of the range.

        Raises Refused, before the first record, if there are none or if offsets are gone.
        """
        return read_paced(
            self.history.log, filled_extent(self.history.log, topic, self.span), self.pace
        )

    def trajectories(self) -> Iterator[tuple[Record, Trajectory]]:
        """Return each rollout's first trajectory; raises Refused, see `_messages`."""
        topic = self.history.topics.trajectories
        self._require_ids(topic)
        return self._messages(topic, Trajectory)

    def scored(self) -> Iterator[tuple[Record, ScoredTrajectory]]:
        """Return the first scored trajectory of each rollout and scoring id; raises Refused."""
        return self._messages(self.history.topics.scored, ScoredTrajectory)

    def requests(self) -> Iterator[tuple[Record, RolloutRequest]]:
        """Return each rollout's first request. Raises Refused, also for a
        version: requests have none."""
        if self.span.version is not None:
            policy_id = self.span.policy_id
            msg = f"a request has no version; name the policy alone: --policy {policy_id}"
            raise Refused(msg)
        topic = self.history.topics.requests
        self._require_ids(topic)
        return self._messages(topic, RolloutRequest)

    def _require_ids(self, topic: str) -> None:
        """Check the ids against a topic's keys, before any record is passed on; raises Refused."""
        if not self.span.ids:
            return
        filled_extent(self.history.log, topic, self.span)
        census = SeenNames(self.span)
        for key in keys(self.history.log, topic, self.span):
            census.note_id(key)
        census.require_ids(topic)

    def _messages(self, topic: str, kind: type[M]) -> Iterator[tuple[Record, M]]:
        """Yield a topic's messages in the range, the first under each name; skips unreadable
        records.

        Raises Refused before the first record like `records`, and after the last if an id was not
        found, or nothing was found of the run or the policy.
        """
        return self._filtered(self.records(topic), topic, kind)

    def _filtered(
        self, records: Iterable[Record], topic: str, kind: type[M]
    ) -> Iterator[tuple[Record, M]]:
        census, firsts = SeenNames(self.span), FirstOfEach[M](_name)
        for record in records:
            message = decoded(self.history.codec, record, kind)
            if message is None or not census.takes(_rollout(message)):
                continue
            if firsts.add(message):
                yield record, message
        census.require(topic)


def read_paced(log: Log, extent: Extent, pace: RateLimit) -> Iterator[Record]:
    """Yield records in small batches, on average no faster than the pace."""
    for batch in read_between(log, *extent, pace.lot):
        pace.wait(len(batch))
        yield from batch


def keys(log: Log, topic: str, span: Range) -> Iterator[str]:
    """Yield the keys within a range's offsets and times, as text, without decoding values."""
    for batch in read_between(log, *extent_of(log, topic, span)):
        for record in batch:
            yield (record.key or b"").decode(errors="replace")


def _rollout(message: RolloutRecord | ScoredTrajectory) -> RolloutRecord:
    return message.trajectory if isinstance(message, ScoredTrajectory) else message


def _name(message: RolloutRecord | ScoredTrajectory) -> tuple[object, ...]:
    """Return the name under which a message counts once."""
    if isinstance(message, ScoredTrajectory):
        return (*_name(message.trajectory), message.scoring_id)
    if isinstance(message, Trajectory):
        return message.rollout_id, message.attempt
    return (message.rollout_id,)


@dataclass
class SeenNames:
    """The names that were seen, so that a refusal can suggest a similar one."""

    span: Range
    taken: int = 0
    ids: set[str] = field(default_factory=set)
    near: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    policies: set[str] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)

    def takes(self, rollout: RolloutRecord) -> bool:
        """Return True if a rollout is in the range; note its names."""
        span, request = self.span, request_of(rollout)
        if span.ids:
            self.note_id(rollout.rollout_id)
        if span.run_id and request is not None:
            self.runs.add(request.run_id)
        if span.policy_id:
            self.policies.update(policies_of(rollout))
        taken = span.has(rollout)
        self.taken += taken
        if not taken and span.version is not None:
            self.versions |= versions_of_policy(rollout, span.policy_id)
        return taken

    def note_id(self, rollout_id: str) -> None:
        if rollout_id in self.span.ids:
            self.ids.add(rollout_id)
        elif len(self.near) < NEAR:
            self.near.add(rollout_id)

    def require(self, topic: str) -> None:
        """Raise Refused if the named run, policy, version or ids were not found."""
        self.require_ids(topic)
        if not self.taken:
            raise Refused(self._nothing_in(topic))

    def _nothing_in(self, topic: str) -> str:
        span = self.span
        if span.run_id and span.run_id not in self.runs:
            return f"no rollout of run {span.run_id!r} in {topic}; {_near(span.run_id, self.runs)}"
        if span.policy_id and span.policy_id not in self.policies:
            near = _near(span.policy_id, self.policies)
            return f"no rollout of policy {span.policy_id!r} in {topic}; {near}"
        if span.version is not None:
            others = ", ".join(map(str, sorted(self.versions))) or "no version at all"
            return (
                f"no rollout in {topic} whose every token version {span.version} of "
                f"{span.policy_id!r} sampled; there is {others}"
            )
        return f"no rollout in {topic} is all of this: {span}"

    def require_ids(self, topic: str) -> None:
        """Raise Refused with the first of the ids that were not found."""
        missing = sorted(self.span.ids - self.ids)
        if missing:
            some = ", ".join(map(repr, missing[:NAMED]))
            more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
            msg = (
                f"{len(missing):,} of {len(self.span.ids):,} rollout ids are not in {topic}: "
                f"{some}{more}; {_near(missing[0], self.near)}"
            )
            raise Refused(msg)


def _near(name: str, known: Iterable[str]) -> str:
    """Suggest the name that was probably meant: one with this prefix, else a similar one."""
    names = sorted(filter(None, known))
    begins = next((other for other in names if other.startswith(name)), None)
    if begins:
        return f"did you mean {begins!r}?"
    return hint(name, names) if names else "there is none"


class FirstOfEach(Generic[K]):
    """Distinguishes the first message under each key from repetitions.

    It keeps eight bytes of BLAKE2b for each key. Among n keys two collide with a probability of
    about n^2 / 2^65: of ten million rollouts one is lost in one of 370,000 readings.
    """

    def __init__(self, key: Callable[[K], tuple[object, ...]]) -> None:
        self._key = key
        self._digests: set[bytes] = set()

    def add(self, message: K) -> bool:
        """Note a message; return True if it is the first under its key."""
        name = self._digest(message)
        if name in self._digests:
            return False
        self._digests.add(name)
        return True

    def __contains__(self, message: K) -> bool:
        """Return True if a message under the same key was noted."""
        return self._digest(message) in self._digests

    def _digest(self, message: K) -> bytes:
        return digest(*self._key(message), size_bytes=8)
