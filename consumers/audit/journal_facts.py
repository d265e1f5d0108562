"""What the journal tells, read once: which rollouts began and ended, and what all of them imply.

Every partition is read twice over: by the fold, which runs the programs again, and by the law of
counting, which needs none. State of a rollout is kept while it is open; of what has to be joined
with other topics a digest and a place remain.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from consumers.agents.fold.journal import Journal
from consumers.agents.fold.rollout import Rollout
from consumers.agents.fold.world import World
from consumers.agents.recent_requests import WINDOW
from consumers.agents.watermark import Watermark, read_watermark
from consumers.audit.columns import Words, firsts, place, sort_together, split, word_of, words
from consumers.audit.implied import ASKED, NEVER_SENT, Asked, word_of_id
from consumers.audit.report import LISTED, Breach, Report
from consumers.bare_trajectory import barer
from consumers.history.counting import JOINED, STARTS, Counting, Law
from consumers.log.protocols import Commit, Record, TopicPartition
from schemas.codec import PREFIX, Codec
from schemas.errors import WireError
from schemas.ids import command_id
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutFinished,
    RolloutRefused,
    RolloutStarted,
    Trajectory,
)
from schemas.topics import Topics

ANSWERS = (ModelAnswered, EnvironmentStepped)
PLACED = (ModelAnswered, EnvironmentStepped, CallFailed)
OPTIONAL = 1
"""Mark: other topics need not hold what this entry implies, it lies before their beginning."""
LARGE_BYTES = 100_000
"""Only a trajectory above this can have been written without its sequences and steps."""
FORGET_EVERY = 1000
FOR_EVER_MS = 1 << 62
FIRST = 20
MINUTE_MS = 60_000
NEVER_MS = 1 << 60
FAR_MINUTES = 15
"""An owner that has been at work for so long has ended what was over before."""
MISMATCH = (
    "the law of counting {} answer {} of attempt {} of rollout {}, the fold of its program {}; "
    "the rollout went on and ended all the same"
)


@dataclass(frozen=True)
class Window:
    """Which part of the log is read, and how far the groups had come before that was settled."""

    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions that are not read from offset 0."""
    horizon_ms: Mapping[str, int] = field(default_factory=dict)
    """Before this a topic may lack records: retention took them, or nobody asked for them."""
    first_request: Mapping[int, int] = field(default_factory=dict)
    """Of journal partitions that are not read from 0: no earlier request is looked for."""
    until_ms: int = 0
    """Later records are not judged; 0 is no limit."""
    commits: Mapping[str, Mapping[TopicPartition, Commit]] = field(default_factory=dict)
    """By group, read before `ends`: so what lies below must have had its effects."""


TopicPlace = tuple[int, int]
REFUSED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Again:
    """A rollout that was started once more."""

    owner: int
    before: TopicPlace
    """Where the journal says so of the first."""
    here: TopicPlace


@dataclass(slots=True)
class _Life:
    """An open rollout, as far as the audit needs more than fold and law."""

    run_again: bool
    counting: Counting
    asked: dict[bytes, int] = field(default_factory=dict)
    """Command ids that the journal implies, and what became of them."""
    dispute: Breach | None = None
    """Where law and fold differ; a new attempt settles it."""


@dataclass
class Ends:
    """One row for each counted terminal event, sorted by its place."""

    places: Words
    owners: Words
    bodies: Words
    """Digest of the trajectory that it implies; 0 where the program was not run."""
    applied: Words
    """Answers counted in the attempt that ended."""
    sizes: Words
    """Bytes of the trajectory."""
    marks: Words


class History:
    """The fold of all journal partitions."""

    def __init__(
        self,
        codec: Codec,
        topics: Topics,
        world: World,
        runnable: Callable[[RolloutStarted], bool],
        window: Window,
        report: Report,
    ) -> None:
        self.codec = codec
        self.topics = topics
        self.world = world
        self.runnable = runnable
        self.window = window
        self.report = report
        self.strands: dict[int, Strand] = {}
        self.asked = Asked()
        self.owners_at_work: set[str] = set()
        """Names under which somebody decided about rollouts."""
        self.minutes: set[int] = set()
        """When that was, in minutes since 1970."""
        self.ended = tuple(array("Q") for _ in fields(Ends))
        self.bare: dict[int, frozenset[int]] = {}
        """By place of the end, digests of what may stand for a trajectory that is too large."""
        self.older: dict[int, int] = {}
        """By place of the end, the digest of what a worker of the first release writes of it."""
        self._started = array("Q"), array("Q"), array("Q")
        """Owners of all rollouts begun, the places of their starts and the offsets asked at."""
        self.again: dict[TopicPlace, Again] = {}
        """By partition and offset of the request: starts of rollouts that were started before."""
        self.not_run = array("Q")
        self.strays: dict[int, int] = {}
        """Owners that events name while no rollout of theirs is open, and where first."""

    def started(self, owner: int, at: int, request_offset: int) -> None:
        """A start counts; one that is refused at once runs nothing."""
        for column, word in zip(self._started, (owner, at, request_offset), strict=True):
            column.append(word)

    def _owners(self) -> Words:
        """Sorted; on the way, see who was started twice, within what a worker knows to refuse."""
        owners: Words
        owners, places, requests = sort_together(*self._started)
        for row in np.flatnonzero(~firsts(owners)).tolist():
            if REFUSED in (requests[row], requests[row - 1]):
                continue
            before, here = split(int(places[row - 1])), split(int(places[row]))
            asked, far = int(requests[row]), int(requests[row]) - int(requests[row - 1])
            if here[0] != before[0] or far <= WINDOW:
                self.again[here[0], asked] = Again(int(owners[row]), before, here)
        return owners

    def take(self, records: Iterable[Record]) -> None:
        """Take records of the journal, in order within each partition."""
        for record in records:
            strand = self.strands.get(record.partition)
            if strand is None:
                strand = self.strands[record.partition] = Strand(self, record.partition)
            try:
                event = self.codec.decode(record.value, Event)
            except WireError as error:
                unreadable(self.report, record, error)
                continue
            strand.take(event, record.offset, record.timestamp_ms)

    def close(self) -> None:
        """The journal is read: sort what is joined, see what is open."""
        for strand in self.strands.values():
            strand.close()
        self.asked.close(self.owners_at_work)
        self.ends = Ends(*sort_together(*self.ended))
        self.owners = self._owners()
        self.owners_not_run = words(sorted(self.not_run))
        self.report.open = sum(len(strand.lives) for strand in self.strands.values())
        self.report.not_run_again = len(self.owners_not_run)
        self.report.repeated = self.asked.repeated


class Strand:
    """One journal partition."""

    def __init__(self, history: History, partition: int) -> None:
        self.history = history
        self.partition = partition
        first = history.window.first_request.get(partition)
        last = None if first is None else first - 1
        self.law = Law(last)
        self.journal = Journal(partition, history.world, "audit", Watermark(0, last))
        self.lives: dict[str, _Life] = {}
        self.requests = array("q")
        """Offsets of the counted requests, rising."""
        self._ignored = 0
        self._events = 0
        topics, horizon = history.topics, history.window.horizon_ms
        self._steps_from = horizon.get(topics.steps, 0)
        self._trajectories_from = horizon.get(topics.trajectories, 0)
        self._calls_from: dict[str, int] = {}
        self.low = self._committed()
        """What the agents have said must be read to know all that is open."""
        self._low_at = -1 if self.low is None else self.low.bulk_low
        self.last_at_low: int | None = None

    def _committed(self) -> Watermark | None:
        """The word of the agents' commit, if what is read goes as far as that."""
        topics, window = self.history.topics, self.history.window
        here = topics.events, self.partition
        commit = window.commits.get(topics.group("agents"), {}).get(here)
        if commit is None or commit.offset > window.ends.get(here, 0):
            return None
        return read_watermark(commit.metadata)

    def take(self, event: Event, offset: int, at_ms: int) -> None:
        """Take one event, in log order."""
        self._events += 1
        if self._events % FORGET_EVERY == 0:
            self.journal.watermark(offset)  # lets it forget what ended before this event
        if 0 <= self._low_at <= offset:
            self._reach_low()
        body = event.body
        if not isinstance(body, PLACED):
            self.history.owners_at_work.add(event.written_by)
            self.history.minutes.add(at_ms // MINUTE_MS)
        if isinstance(body, STARTS):
            self._start(event, body, offset, at_ms)
            return
        if isinstance(body, CallFailed) and body.code in NEVER_SENT:
            self.history.asked.excused.add(word_of_id(event.command_id))
        life = self.lives.get(event.rollout_id)
        if life is None:
            self._stray(event, offset)
            return
        ignored = self.law.take(event)
        if isinstance(body, ANSWERS):
            self._answer(life, event, offset)
        elif isinstance(body, CallFailed):
            self._failure(life, event, body)
        if isinstance(body, PLACED) and not life.run_again:
            return
        effects = self.journal.take(event, offset, at_ms)
        counted = self._counted() and not self._broken(event)
        if life.run_again and counted == bool(ignored):
            self._differ(life, event, offset, counted=counted)
        if not life.counting.open:
            self._end(life, event, effects, offset, at_ms)
        else:
            if isinstance(body, AttemptStarted) and not ignored:
                life.dispute = None
            if life.run_again:
                self._imply(life, effects, offset, at_ms)

    def _counted(self) -> bool:
        """Whether the fold has counted the event it was given last."""
        before, self._ignored = self._ignored, sum(self.journal.ignored.values())
        return before == self._ignored

    def _broken(self, event: Event) -> bool:
        """Whether the program asks something else than its journal answers."""
        rollout = self.journal.open.get(event.rollout_id)
        return rollout is not None and rollout.broken

    def _differ(self, life: _Life, event: Event, offset: int, *, counted: bool) -> None:
        words = ("ignores", "counts") if counted else ("counts", "does not")
        place_ = f"{event.position}.{event.tries}"
        text = MISMATCH.format(words[0], place_, event.attempt, event.rollout_id, words[1])
        topic = self.history.topics.events
        life.dispute = life.dispute or Breach("I2", text, topic, self.partition, offset)

    # Starts

    def _start(
        self, event: Event, body: RolloutStarted | RolloutRefused, offset: int, at_ms: int
    ) -> None:
        """Judge a start; the chain of requests decides which one counts."""
        history = self.history
        ignored = self.law.take(event)
        effects = self.journal.take(event, offset, at_ms)
        fold_counts = self._counted()
        if fold_counts == bool(ignored):
            text = f"law and fold do not agree whether the start of {event.rollout_id} counts"
            history.report.add(Breach("I2", text, history.topics.events, self.partition, offset))
            return
        history.report.checked["I2"] += 1
        if ignored and ignored != JOINED:
            return
        self.requests.append(body.request_offset)
        if ignored == JOINED:
            return
        history.report.accepted += 1
        owner, refused = word_of(event.rollout_id.encode()), isinstance(body, RolloutRefused)
        at = REFUSED if refused else body.request_offset % REFUSED  # a stranger's may be negative
        history.started(owner, place(self.partition, offset), at)
        if isinstance(body, RolloutRefused):
            self._ended(effects[0], event.rollout_id, 0, offset, at_ms)
            return
        life = _Life(history.runnable(body), self.law.open[event.rollout_id])
        self.lives[event.rollout_id] = life
        if life.run_again:
            self._imply(life, effects, offset, at_ms)
        else:
            history.not_run.append(owner)

    def _stray(self, event: Event, offset: int) -> None:
        """A word about a rollout that is not open: late, or begun before what is read."""
        history = self.history
        owner = word_of(event.rollout_id.encode())
        history.strays.setdefault(owner, place(self.partition, offset))
        if isinstance(event.body, PLACED):
            done = isinstance(event.body, ANSWERS)
            history.asked.stray(event, place(self.partition, offset), done=done)

    # Work

    def _answer(self, life: _Life, event: Event, offset: int) -> None:
        report = self.history.report
        report.checked["I2"] += 1
        report.checked["I9"] += 1
        if self._was_asked(life, event):
            self.history.asked.answer(life.asked, event, place(self.partition, offset))

    def _failure(self, life: _Life, event: Event, body: CallFailed) -> None:
        if self._was_asked(life, event):
            self.history.asked.failure(life.asked, event, body)

    def _was_asked(self, life: _Life, event: Event) -> bool:
        """Whether a command was implied; where no program is run, nobody knows better."""
        if not life.run_again:
            life.asked.setdefault(event.command_id, ASKED)
        return event.command_id in life.asked

    def _imply(self, life: _Life, effects: Iterable[object], offset: int, at_ms: int) -> None:
        """Note the commands that an entry of the journal gives rise to."""
        history = self.history
        for effect in effects:
            if isinstance(effect, ModelCall):
                horizon = self._calls_horizon(effect.policy_id)
            elif isinstance(effect, EnvironmentStep):
                horizon = self._steps_from
            else:
                continue
            mark = OPTIONAL if at_ms < horizon else 0
            history.asked.imply(effect, place(self.partition, offset, mark))
            life.asked.setdefault(effect.command_id, ASKED)

    def _calls_horizon(self, policy_id: str) -> int:
        horizon = self._calls_from.get(policy_id)
        if horizon is None:
            window, topic = self.history.window, self.history.topics.calls(policy_id)
            there = any(topic == name for name, _ in window.ends)
            # A topic that was removed, as that of a run that is over is, has none of its calls.
            horizon = window.horizon_ms.get(topic, 0) if there else FOR_EVER_MS
            self._calls_from[policy_id] = horizon
        return horizon

    # Ends

    def _end(
        self, life: _Life, event: Event, effects: Iterable[object], offset: int, at_ms: int
    ) -> None:
        del self.lives[event.rollout_id]
        history, counting = self.history, life.counting
        if isinstance(event.body, RolloutFinished):
            self._finished(life, event.body)
        trajectory, *courtesy = effects
        applied = counting.turns + counting.steps
        history.report.checked["I4"] += applied
        run = trajectory if life.run_again else None
        self._ended(run, event.rollout_id, applied, offset, at_ms)
        if life.run_again:
            self._imply(life, courtesy, offset, at_ms)
        history.asked.ended(life.asked)

    def _finished(self, life: _Life, body: RolloutFinished) -> None:
        """A program ended itself, so it waited for nothing; or a guard did, before it had asked."""
        history, rollout = self.history, self.journal.just_ended
        if life.dispute is not None and body.code != "determinism":
            history.report.add(life.dispute)
        if life.run_again and rollout is not None:
            for waits in rollout.attempt.outstanding.values():
                named = command_id(
                    rollout.request.rollout_id, rollout.attempt.number, waits.position, waits.tries
                )
                history.asked.excused.add(word_of_id(named))

    def _ended(
        self, trajectory: object, rollout_id: str, applied: int, offset: int, at_ms: int
    ) -> None:
        history = self.history
        history.report.ended += 1
        body = size = 0
        if isinstance(trajectory, Trajectory):
            body, size = self._digested(trajectory, place(self.partition, offset))
        mark = OPTIONAL if at_ms < self._trajectories_from else 0
        owner = word_of(rollout_id.encode())
        row = (place(self.partition, offset), owner, body, applied, size, mark)
        for column, word in zip(history.ended, row, strict=True):
            column.append(word)

    def _digested(self, trajectory: Trajectory, at: int) -> tuple[int, int]:
        """The word of what an end implies, 0 where it cannot be written whole; and its size."""
        history = self.history
        try:
            encoded = history.codec.encode(history.topics.trajectories, trajectory)
        except WireError:
            return 0, 0
        size = len(encoded) - PREFIX.size
        older = of_first_release(trajectory)
        if older != trajectory:
            told = history.codec.encode(history.topics.trajectories, older)
            history.older[at] = word_of(memoryview(told)[PREFIX.size :])
        if size > LARGE_BYTES:
            both = (bare_words(history.codec, history.topics, each) for each in (trajectory, older))
            history.bare[at] = frozenset(word for words in both for word in words)
        return word_of(memoryview(encoded)[PREFIX.size :]), size

    def close(self) -> None:
        """See what the open rollouts wait for."""
        self._reach_low()
        for rollout_id, life in self.lives.items():
            rollout = self.journal.open[rollout_id]
            self.history.asked.left(life.asked)
            if not life.run_again or not rollout.at_first_command():
                continue
            for waits in rollout.attempt.outstanding.values():
                named = command_id(rollout_id, rollout.attempt.number, waits.position, waits.tries)
                self.history.asked.excused.add(word_of_id(named))  # a quota may hold it back

    # Where a reader would go on

    def _reach_low(self) -> None:
        """All below the committed low watermark is read: that is how the chain of starts stands."""
        if self._low_at >= 0:
            self._low_at, self.last_at_low = -1, self.law.last

    def forgotten(self) -> Iterable[tuple[str, int]]:
        """Open rollouts that whoever goes on from the commit would not know, and their starts."""
        low = self.low
        if low is None:
            return
        for rollout_id in self.lives:
            first = self.journal.open[rollout_id].first_offset
            if first < low.bulk_low and first not in low.stragglers:
                yield rollout_id, first

    def overdue(self) -> Iterable[tuple[str, int, int]]:
        """Open rollouts that were over long ago: id, offset of the start, minutes past the end."""
        minutes = sorted(self.history.minutes)
        for rollout_id in self.lives:
            rollout = self.journal.open[rollout_id]
            after = bisect_right(minutes, self._ends_ms(rollout) // MINUTE_MS)
            if after < len(minutes) and minutes[-1] - minutes[after] >= FAR_MINUTES:
                past = minutes[-1] - self._ends_ms(rollout) // MINUTE_MS
                yield rollout_id, rollout.first_offset, past

    def _ends_ms(self, rollout: Rollout) -> int:
        """When a rollout was over at the latest: a quota holds its clock with its first command."""
        if self.low is not None and not self.low.quota:
            return rollout.ends_ms()
        if not rollout.heard_ms:
            return NEVER_MS
        return rollout.ends_ms() + rollout.heard_ms - rollout.started_ms


def of_first_release(trajectory: Trajectory) -> Trajectory:
    """Without what a worker of the first release does not know and so leaves out."""
    request, sequences = trajectory.request, trajectory.sequences
    return replace(
        trajectory,
        request=request and replace(request, policy_version=-1),
        sequences=sequences and tuple(replace(each, samplings=()) for each in sequences),
    )


def bare_words(codec: Codec, topics: Topics, trajectory: Trajectory) -> Iterator[int]:
    """A trajectory as it may be written where it cannot be whole, its reason aside."""
    for bare in barer(replace(trajectory, code="", reason="")):
        yield word_of(memoryview(codec.encode(topics.trajectories, bare))[PREFIX.size :])


def unreadable(report: Report, record: Record, error: WireError) -> None:
    """Count a record that no schema can read."""
    report.unreadable[record.topic] = report.unreadable.get(record.topic, 0) + 1
    if len(report.unread) < LISTED:
        report.unread.append((record.topic, record.partition, record.offset))
    if len(report.first_unreadable) < FIRST:
        place_ = f"{record.topic} {record.partition}@{record.offset}"
        report.first_unreadable.append(f"{place_}: {error}")
