"""One rollout's journal as a story: its events, which of them counted, and its end.

Counting needs no program (`rollcall.consumers.history.reading.counting`). Starts of other rollouts
are not read, so a start counts if its request's offset is above that of the last counted one.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rollcall.consumers.history.reading.counting import Counting, Start
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.rollouts.rollout_search import journal_under, read_scored
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letters import skipped_in_journal
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import FailureCode, WireError
from rollcall.schemas.messages import (
    AttemptStarted,
    DeadlinePassed,
    Event,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    ScoredTrajectory,
    Trajectory,
)

End = RolloutFinished | RolloutCancelled | DeadlinePassed | RolloutRefused


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the journal. `ignored` says why it does not count; empty if it does."""

    offset: int
    at_ms: int
    event: Event | None
    """None for bytes that cannot be read."""
    ignored: str

    @property
    def begins_attempt(self) -> bool:
        """True if it starts a new attempt."""
        return self.event is not None and isinstance(self.event.body, AttemptStarted)


@dataclass(slots=True)
class Story:
    """A rollout from its start to its end, or to the end of the log."""

    rollout_id: str
    partition: int
    entries: list[Entry] = field(default_factory=list)
    failures: int = 0
    """The failures counted in the last attempt."""

    @property
    def started_ms(self) -> int:
        """The append time of the first entry, in milliseconds since the epoch."""
        return self.entries[0].at_ms

    @property
    def request(self) -> RolloutRequest | None:
        """None if the start is past retention, or the request could not be read."""
        event = self.entries[0].event
        return event.body.request if event and isinstance(event.body, Start) else None

    @property
    def repeats(self) -> bool:
        """True if it is no rollout, but a repeated request for one."""
        event = self.entries[0].event
        body = event.body if event else None
        return isinstance(body, RolloutRefused) and body.code == FailureCode.REPEATED

    @property
    def end(self) -> Entry | None:
        """The entry that ended it; None while it is open."""
        return next((e for e in self.counted() if e.event and isinstance(e.event.body, End)), None)

    def is_of(self, trajectory: Trajectory) -> bool:
        """Return True if a trajectory is of this rollout, not of another under the same id."""
        place = trajectory.journal_partition, trajectory.last_offset
        end = self.end
        same = end is not None and place == (self.partition, end.offset)
        return same and trajectory.rollout_id == self.rollout_id

    def counted(self) -> Iterator[Entry]:
        """Return the entries that count."""
        return (entry for entry in self.entries if not entry.ignored)

    @property
    def attempt(self) -> int:
        """The number of the last attempt that began."""
        return max((entry.event.attempt for entry in self.counted() if entry.event), default=1)

    def outcomes(self) -> list[Event]:
        """Return the last attempt's events in log order, without failures that were retried."""
        events = [entry.event for entry in self.last_attempt() if entry.event]
        last = {event.position: event for event in events}
        return [e for e in events if e.position < 0 or last[e.position] is e]

    def last_attempt(self) -> list[Entry]:
        """Return the counted entries since the last attempt began."""
        entries = list(self.counted())
        starts = [n for n, entry in enumerate(entries) if entry.begins_attempt]
        return entries[starts[-1] :] if starts else entries


def stories_of(history: History, rollout_id: str) -> list[Story]:
    """Return the rollouts of an id in the journal; raises Refused if there
    are none, and Unavailable."""
    return stories(rollout_id, journal_of(history, rollout_id), history.codec)


def stories(rollout_id: str, records: Iterable[Record], codec: Codec) -> list[Story]:
    """Return the rollouts of one id, in log order: an id may be used again
    once its rollout has ended."""
    same_id: list[Story] = []
    for partition, own in sorted(_by_partition(records).items()):
        counting = Counting()
        story: Story | None = None
        for record in own:
            entry = _entry(record, codec, counting)
            begins = entry.event and isinstance(entry.event.body, Start) and not entry.ignored
            if story is None or begins:
                story = Story(rollout_id, partition)
                same_id.append(story)
            story.entries.append(entry)
            story.failures = counting.failures
    return same_id


def latest(same_id: Sequence[Story]) -> Story:
    """Return the last rollout of an id, ignoring requests that only repeated it."""
    return next((story for story in reversed(same_id) if not story.repeats), same_id[-1])


def _by_partition(records: Iterable[Record]) -> dict[int, list[Record]]:
    by_partition: dict[int, list[Record]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record)
    return by_partition


def _entry(record: Record, codec: Codec, counting: Counting) -> Entry:
    try:
        event = codec.decode(record.value, Event)
    except WireError as error:
        return Entry(record.offset, record.timestamp_ms, None, f"cannot be read: {error}")
    return Entry(record.offset, record.timestamp_ms, event, counting.take(event))


def journal_of(history: History, rollout_id: str) -> list[Record]:
    """Return the counted records under a rollout's key, by partition in log order.

    Raises Refused if there are none, and Unavailable.
    """
    own = journal_under(history, rollout_id)
    return skipped_in_journal(history.log, history.topics).counted(own)


def scores_of(history: History, story: Story) -> list[ScoredTrajectory]:
    """Return the scores of a rollout that has ended, the first of each scoring id.

    An open rollout has none. A score that was written long after all requested ones, as by
    `rescore`, may be left out. Raises Unavailable.
    """
    end = story.end
    if end is None:
        return []
    request = story.request
    asked = set(request.scorings) if request else set[str]()
    scores: dict[str, ScoredTrajectory] = {}

    def take(record: Record) -> None:
        with suppress(WireError):
            scored = history.codec.decode(record.value, ScoredTrajectory)
            if story.is_of(scored.trajectory):
                scores.setdefault(scored.scoring_id, scored)

    def done() -> bool:
        return bool(scores) and asked <= scores.keys()

    key = (request and request.group_id) or story.rollout_id
    read_scored(history, key, end.at_ms, take, done)
    return list(scores.values())
