"""One rollout's journal as a story: what happened, which of it counted, how it ended.

Counting follows the law of `consumers.agents.fold` without its program: an answer counts if its
attempt is the current one and it is the first at its (position, try), where try is the number of
failures counted there. Starts of other rollouts are not looked at, so a start counts when its
request lies above that of the last one counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from consumers.agents.fold import FREE_FAILURES
from consumers.log import Record
from schemas.codec import Codec
from schemas.errors import WireError
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Event,
    Limits,
    ModelAnswered,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Trajectory,
)

Start = RolloutStarted | RolloutRefused
End = RolloutFinished | RolloutCancelled | DeadlinePassed | RolloutRefused


@dataclass(slots=True)
class _Place:
    """One position of the current attempt."""

    tries: int = 0
    failures: int = 0
    with_history: bool = False
    settled: bool = False

    def fail(self, body: CallFailed, limits: Limits, attempt: int) -> None:
        if body.code == "session_lost" and attempt < limits.max_attempts:
            self.settled = True  # a new attempt follows
            return
        free = body.code in FREE_FAILURES and not self.with_history
        self.failures += not free
        self.tries += 1
        self.with_history = self.with_history or free
        self.settled = not body.retriable or self.failures >= limits.max_tries


class Counting:
    """The counting rule for one rollout in one journal partition."""

    def __init__(self) -> None:
        self.open = False
        self.attempt = 0
        self.turns = 0
        """Model answers counted in the current attempt."""
        self.failures = 0
        self._started = -1
        self._limits = Limits()
        self._places: dict[int, _Place] = {}

    def take(self, event: Event) -> str:
        """Take one event, in log order; return why it does not count, empty where it does."""
        body = event.body
        if isinstance(body, Start):
            return self._start(body)
        if not self.open:
            return "the rollout is not open"
        if isinstance(body, AttemptStarted):
            return self._new_attempt(event.attempt)
        if isinstance(body, RolloutCancelled | DeadlinePassed):
            self.open = False
            return ""
        if event.attempt != self.attempt:
            return f"of attempt {event.attempt}, while {self.attempt} was current"
        if isinstance(body, RolloutFinished):
            self.open = False
            return ""
        return self._answer(event, body)

    def _start(self, body: Start) -> str:
        if body.request_offset <= self._started:
            return "its request was started before"
        self._started = body.request_offset
        if self.open:
            return "the rollout is open already"
        self.open = isinstance(body, RolloutStarted)
        self._begin(1)
        self._limits = body.request.limits if body.request else Limits()
        return ""

    def _new_attempt(self, attempt: int) -> str:
        if attempt != self.attempt + 1:
            return f"attempt {self.attempt} was current"
        self._begin(attempt)
        return ""

    def _begin(self, attempt: int) -> None:
        self.attempt, self.turns, self.failures = attempt, 0, 0
        self._places.clear()

    def _answer(self, event: Event, body: ModelAnswered | EnvironmentStepped | CallFailed) -> str:
        place = self._places.setdefault(event.position, _Place())
        if place.settled:
            return "answered already"
        if event.tries != place.tries:
            return f"of try {event.tries}, while {place.tries} was current"
        if isinstance(body, CallFailed):
            before = place.failures
            place.fail(body, self._limits, self.attempt)
            self.failures += place.failures - before
        else:
            place.settled = True
            self.turns += isinstance(body, ModelAnswered)
        return ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the journal. `ignored` says why it does not count; empty where it does."""

    offset: int
    at_ms: int
    event: Event | None
    """None for bytes that cannot be read."""
    ignored: str


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
