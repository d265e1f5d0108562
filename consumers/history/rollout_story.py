"""One rollout's journal as a story: what happened, which of it counted, how it ended.

Counting needs no program (`consumers.history.counting`). Starts of other rollouts are not looked
at, so a start counts when its request lies above that of the last one counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from consumers.history.counting import Counting
from consumers.log.protocols import Record
from schemas.codec import Codec
from schemas.errors import WireError
from schemas.messages import (
    REPEATED,
    AttemptStarted,
    DeadlinePassed,
    Event,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Trajectory,
)

Start = RolloutStarted | RolloutRefused
End = RolloutFinished | RolloutCancelled | DeadlinePassed | RolloutRefused


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the journal. `ignored` says why it does not count; empty where it does."""

    offset: int
    at_ms: int
    event: Event | None
    """None for bytes that cannot be read."""
    ignored: str

    @property
    def begins_attempt(self) -> bool:
        return self.event is not None and isinstance(self.event.body, AttemptStarted)


@dataclass(slots=True)
class Story:
    """A rollout from its start to its end, or to the end of the log."""

    rollout_id: str
    partition: int
    entries: list[Entry] = field(default_factory=list)
    failures: int = 0
    """Counted in the last attempt."""

    @property
    def started_ms(self) -> int:
        return self.entries[0].at_ms

    @property
    def request(self) -> RolloutRequest | None:
        """None where the start is past retention, or the request could not be read."""
        event = self.entries[0].event
        return event.body.request if event and isinstance(event.body, Start) else None

    @property
    def repeats(self) -> bool:
        """Whether it is no rollout, but a request for one that was asked for before."""
        event = self.entries[0].event
        body = event.body if event else None
        return isinstance(body, RolloutRefused) and body.code == REPEATED

    @property
    def end(self) -> Entry | None:
        return next((e for e in self.counted() if e.event and isinstance(e.event.body, End)), None)

    def is_of(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory was made of this rollout, not of another under the same id."""
        place = trajectory.journal_partition, trajectory.last_offset
        end = self.end
        same = end is not None and place == (self.partition, end.offset)
        return same and trajectory.rollout_id == self.rollout_id

    def counted(self) -> Iterator[Entry]:
        return (entry for entry in self.entries if not entry.ignored)

    @property
    def attempt(self) -> int:
        """The last one that began."""
        return max((entry.event.attempt for entry in self.counted() if entry.event), default=1)

    def outcomes(self) -> list[Event]:
        """The last attempt's events without failures that were tried again, in log order."""
        events = [entry.event for entry in self.last_attempt() if entry.event]
        last = {event.position: event for event in events}
        return [e for e in events if e.position < 0 or last[e.position] is e]

    def last_attempt(self) -> list[Entry]:
        """What counted since the last attempt began."""
        entries = list(self.counted())
        starts = [n for n, entry in enumerate(entries) if entry.begins_attempt]
        return entries[starts[-1] :] if starts else entries


def stories(rollout_id: str, records: Iterable[Record], codec: Codec) -> list[Story]:
    """The rollouts of one id, in log order: an id may be used again once its rollout has ended."""
    told: list[Story] = []
    for partition, own in sorted(_by_partition(records).items()):
        counting = Counting()
        story: Story | None = None
        for record in own:
            entry = _entry(record, codec, counting)
            begins = entry.event and isinstance(entry.event.body, Start) and not entry.ignored
            if story is None or begins:
                story = Story(rollout_id, partition)
                told.append(story)
            story.entries.append(entry)
            story.failures = counting.failures
    return told


def latest(told: Sequence[Story]) -> Story:
    """The last rollout of an id; a request that only repeated it is none."""
    return next((story for story in reversed(told) if not story.repeats), told[-1])


def _by_partition(records: Iterable[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def _entry(record: Record, codec: Codec, counting: Counting) -> Entry:
    try:
        event = codec.decode(record.value, Event)
    except WireError as error:
        return Entry(record.offset, record.timestamp_ms, None, f"cannot be read: {error}")
    return Entry(record.offset, record.timestamp_ms, event, counting.take(event))
