"""What every rollout that is not done waits for: a fold of the log; no worker is asked.

A wait has a reason, a beginning, mostly a deadline, and a place: the partition whose owner has to
act. Records are taken in the order journal (from the agents' low watermark on), requests,
trajectories, scored records, and the names of commands on the work topics; each may have gone on
while the one before was read, and the later one is believed. Memory is bounded by what is open.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from consumers.agents.fold.journal import START, Journal
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.rollout import Rollout
from consumers.agents.fold.trajectory import END
from consumers.agents.fold.world import World
from consumers.agents.watermark import Watermark
from consumers.agents.wishes import CallModel, Step
from consumers.log.protocols import Record
from schemas.errors import Refused
from schemas.ids import command_id
from schemas.messages import (
    AttemptStarted,
    Event,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from schemas.topics import Topics

REASONS = ("admission", "call", "step", "decision", "program", "reward", "group")
PRUNE_EVERY = 1024
NAMED = 4
"""So many missing members of a group are named."""

Run = tuple[int, int]
"""Journal partition and first offset: an id may be asked for again, this may not."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition; the member of the group that owns it has to act."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that one rollout waits for."""

    rollout_id: str
    group_id: str
    reason: str
    what: str
    since_ms: int
    deadline_ms: int | None
    at: Place | None
    """None where the trainer has to act: it is no member of a group."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How far one scoring has come; what it has finished needs no scored record as a proof."""

    scoring_id: str
    commits: Mapping[int, int] = field(default_factory=dict)
    above: Mapping[int, Collection[int]] = field(default_factory=dict)
    """Finished offsets above the commit."""

    def finished(self, partition: int, offset: int) -> bool:
        below = offset < self.commits.get(partition, 0)
        return below or offset in self.above.get(partition, ())


@dataclass(frozen=True, slots=True)
class _Asked:
    request: RolloutRequest
    partition: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """A rollout that has ended, and the offsets at which its trajectory was seen."""

    rollout_id: str
    group_id: str
    group_size: int
    partition: int
    ended_ms: int
    offsets: list[int] = field(default_factory=list)


class Waits:
    """Takes what was read, then tells what is waited for."""

    def __init__(
        self,
        topics: Topics,
        world: World,
        scorings: Sequence[Scoring] = (),
        *,
        group_id: str = "",
    ) -> None:
        self.topics = topics
        self.world = world
        self.scorings = scorings
        self.group_id = group_id
        """A group whose scored members are wanted although none of it may be open."""
        self.journals: dict[int, Journal] = {}
        self.writers: dict[int, str] = {}
        """The agents worker that wrote the newest entry of an agents worker, by partition."""
        self.oldest_ms: int | None = None
        """Nothing that matters was scored before."""
        self._commits: dict[int, int] = {}
        self._touched: dict[Run, int] = {}
        self._request_offsets: dict[Run, int] = {}
        self._asked: dict[Run, _Asked] = {}
        self._ended: dict[Run, _Ended] = {}
        self._scored: dict[str, dict[Run, int]] = defaultdict(dict)
        self._members: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._sizes: dict[str, int] = {}
        self._sent: dict[bytes, Place] = {}
        self._unloadable: dict[str, str] = {}

    # Taking

    def begin(self, partition: int, begin: Watermark, commit: int) -> None:
        """Fold a journal partition; trajectories of ends below `commit` are known to be out."""
        self.journals[partition] = Journal(partition, self.world, "", begin)
        self._commits[partition] = commit

    def needs(self, record: Record) -> bool:
        """Whether an entry of the journal has to be read at all; asked in log order."""
        return self.journals[record.partition].needs(record.offset, record.key)

    def take_event(self, event: Event, partition: int, offset: int, at_ms: int) -> None:
        """One entry of the journal, in log order."""
        journal, body = self.journals[partition], event.body
        if isinstance(body, (*START, *END, AttemptStarted)):
            self.writers[partition] = event.written_by
        before = journal.open.get(event.rollout_id)
        taken = journal.take(event, offset, at_ms)
        rollout = journal.open.get(event.rollout_id)
        if rollout is not None:
            self._touched[_run(rollout)] = at_ms
            if before is None and isinstance(body, RolloutStarted):
                self._request_offsets[_run(rollout)] = body.request_offset
        elif before is not None:
            self._forget(before)
        if taken.ended is not None and offset >= self._commits[partition]:
            self._end(taken.ended)
        if offset % PRUNE_EVERY == 0:
            journal.watermark(offset + 1)  # what has ended need not be kept

    def _forget(self, rollout: Rollout) -> None:
        self._touched.pop(_run(rollout), None)
        self._request_offsets.pop(_run(rollout), None)

    def first_requests(self) -> dict[int, int]:
        """From where requests are to be read: those of open groups, and those not started."""
        found = {p: 0 if j.last is None else j.last + 1 for p, j in self.journals.items()}
        for rollout in self._open():
            if rollout.request.group_size > 1 and _run(rollout) in self._request_offsets:
                offset = self._request_offsets[_run(rollout)]
                found[rollout.partition] = min(found[rollout.partition], offset)
        return found

    def take_request(
        self, request: RolloutRequest, partition: int, offset: int, at_ms: int
    ) -> None:
        """One request; it is waiting where no start has counted it."""
        self._not_before(at_ms)
        last = self.journals[partition].last
        if last is None or offset > last:
            self._asked[partition, offset] = _Asked(request, partition, at_ms)

    def take_trajectory(self, trajectory: Trajectory, partition: int, offset: int) -> None:
        """One trajectory, which may be there more than once."""
        self._end(trajectory).offsets.append(offset)
        journal = self.journals[partition]
        rollout = journal.open.get(trajectory.rollout_id)
        if rollout is not None and rollout.first_offset == trajectory.first_offset:
            del journal.open[trajectory.rollout_id]
            self._forget(rollout)

    def _end(self, trajectory: Trajectory) -> _Ended:
        run = trajectory.journal_partition, trajectory.first_offset
        if run not in self._ended:
            request = trajectory.request
            group = (request.group_id, request.group_size) if request else ("", 1)
            place = trajectory.journal_partition, trajectory.ended_ms
            self._ended[run] = _Ended(trajectory.rollout_id, *group, *place)
            self._not_before(trajectory.started_ms)
        return self._ended[run]

    def _not_before(self, at_ms: int) -> None:
        self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)

    def scored_keys(self) -> set[bytes]:
        """Keys of the scored records that tell something about what is open."""
        keys = {self.group_id, *(e.group_id or e.rollout_id for e in self._ended.values())}
        keys |= {request.group_id for request in self._requests() if request.group_size > 1}
        return {key.encode(errors="surrogateescape") for key in keys if key}

    def take_scored(self, scored: ScoredTrajectory, at_ms: int) -> None:
        """One scored record; of each scoring the first counts."""
        trajectory, request = scored.trajectory, scored.trajectory.request
        run = trajectory.journal_partition, trajectory.first_offset
        self._scored[scored.scoring_id].setdefault(run, at_ms)
        if request is not None and request.group_id and request.group_size > 1:
            self._sizes[request.group_id] = request.group_size
            members = self._members[scored.scoring_id, request.group_id]
            members.setdefault(trajectory.rollout_id, at_ms)

    def wanted_commands(self) -> dict[tuple[str, str], int]:
        """Groups and their topics to look through for commands, and since when they were sent."""
        since: dict[tuple[str, str], int] = {}
        for rollout in self._open():
            for waits in rollout.attempt.outstanding.values():
                work = self._work(rollout, waits)
                since[work] = min(since.get(work, waits.opened_ms), waits.opened_ms)
        return since

    def wanted_keys(self) -> set[bytes]:
        """The keys of those commands."""
        return {
            rollout.request.rollout_id.encode()
            for rollout in self._open()
            if rollout.attempt.outstanding
        }

    def take_command(self, name: bytes, place: Place) -> None:
        """A command under one of these keys was sent; `name` is its id in hex, as its header is."""
        self._sent[name] = place

    # Telling

    def told(self) -> list[Wait]:
        """What every rollout waits for, once for each reason; the oldest first."""
        found = [*self._admissions(), *self._running(), *self._rewards(), *self._groups()]
        together: dict[tuple[str, str], list[Wait]] = defaultdict(list)
        for wait in sorted(found, key=lambda wait: (wait.since_ms, wait.rollout_id)):
            together[wait.rollout_id, wait.reason].append(wait)
        return [_as_one(waits) for waits in together.values()]

    def asked_of(self, run_id: str, policy_id: str) -> set[str]:
        """Ids of what is open or asked for, of a run, or of a policy that is waited for."""
        found = {
            request.rollout_id
            for request in self._requests()
            if (run_id and request.run_id == run_id) or request.policy_id == policy_id
        }
        for rollout in self._open():
            asked = (waits.sequence for waits in rollout.attempt.outstanding.values())
            if any(sequence and sequence.policy_id == policy_id for sequence in asked):
                found.add(rollout.request.rollout_id)
        return found

    def _open(self) -> Iterator[Rollout]:
        for journal in self.journals.values():
            yield from journal.open.values()

    def _requests(self) -> Iterator[RolloutRequest]:
        yield from (rollout.request for rollout in self._open())
        yield from (asked.request for asked in self._asked.values())

    def _admissions(self) -> Iterator[Wait]:
        for asked in self._asked.values():
            place = Place(self.topics.group("agents"), self.topics.requests, asked.partition)
            yield _wait(asked.request, "admission", "not started", asked.at_ms, None, place)

    def _running(self) -> Iterator[Wait]:
        for rollout in self._open():
            journal = Place(self.topics.group("agents"), self.topics.events, rollout.partition)
            missing = self._missing_program(rollout.request.agent)
            if missing:
                end = rollout.ends_ms()
                yield _wait(rollout.request, "program", missing, rollout.started_ms, end, journal)
            elif rollout.decision is not None:
                since = self._touched[_run(rollout)]
                what = _decided(rollout)
                yield _wait(rollout.request, "decision", what, since, rollout.ends_ms(), journal)
            else:
                for waits in rollout.attempt.outstanding.values():
                    yield self._outstanding(rollout, waits, journal)

    def _missing_program(self, name: str) -> str:
        """Why a program cannot be loaded here; without it nobody can tell what it asked for."""
        if name not in self._unloadable:
            try:
                self.world.program_of(name)
            except Refused as error:
                self._unloadable[name] = f"not known, its program cannot be loaded here: {error}"
            else:
                self._unloadable[name] = ""
        return self._unloadable[name]

    def _outstanding(self, rollout: Rollout, waits: Outstanding, journal: Place) -> Wait:
        request = rollout.request
        place = rollout.attempt.number, waits.position, waits.tries
        sent = self._sent.get(command_id(request.rollout_id, *place).hex().encode())
        if sent is None and rollout.at_first_command():
            what = "started, first command not sent: its user's quota, or its worker is gone"
            return _wait(request, "admission", what, waits.opened_ms, None, journal)
        deadline = min(waits.deadline_ms(), rollout.ends_ms())
        what = f"{self._asked_for(rollout, waits)} {'/'.join(map(str, place))}"
        if sent is None:
            what += ", not sent yet"
        reason = "call" if isinstance(waits.wish, CallModel) else "step"
        return _wait(request, reason, what, waits.opened_ms, deadline, sent or journal)

    def _asked_for(self, rollout: Rollout, waits: Outstanding) -> str:
        """The policy or the environment."""
        wish = waits.wish
        if isinstance(wish, CallModel):
            return wish.policy_id or rollout.request.policy_id
        opened = rollout.attempt.sessions[wish.session] if isinstance(wish, Step) else None
        given = opened.environment if opened else getattr(wish, "environment", None)
        return str(given or rollout.request.task.environment)

    def _work(self, rollout: Rollout, waits: Outstanding) -> tuple[str, str]:
        """Group and topic of a command."""
        if isinstance(waits.wish, CallModel):
            policy = self._asked_for(rollout, waits)
            return self.topics.group("models", policy), self.topics.calls(policy)
        return self.topics.group("environments"), self.topics.steps

    def _rewards(self) -> Iterator[Wait]:
        scorings = {scoring.scoring_id: scoring for scoring in self.scorings}
        for scoring_id in {*scorings, *self._scored}:
            scoring = scorings.get(scoring_id, Scoring(scoring_id))
            for run, ended in self._ended.items():
                if not self._is_scored(scoring, run, ended):
                    yield self._reward(scoring_id, ended)

    def _is_scored(self, scoring: Scoring, run: Run, ended: _Ended) -> bool:
        finished = any(scoring.finished(ended.partition, offset) for offset in ended.offsets)
        return finished or run in self._scored.get(scoring.scoring_id, {})

    def _reward(self, scoring_id: str, ended: _Ended) -> Wait:
        topics, what = self.topics, f"scoring {scoring_id!r}"
        if ended.offsets:
            group = topics.group("rewards", scoring_id)
            place = Place(group, topics.trajectories, ended.partition)
        else:
            what += ", its trajectory is not written yet"
            place = Place(topics.group("agents"), topics.events, ended.partition)
        return Wait(ended.rollout_id, ended.group_id, "reward", what, ended.ended_ms, None, place)

    def _groups(self) -> Iterator[Wait]:
        """Scored members of groups that are not whole."""
        missing: dict[str, set[str]] = defaultdict(set)
        for request in self._requests():
            missing[request.group_id].add(request.rollout_id)
        for ended in self._ended.values():
            missing[ended.group_id].add(ended.rollout_id)
        for (scoring_id, group_id), members in self._members.items():
            size = self._sizes[group_id]
            if len(members) < size:
                others = sorted(missing[group_id] - members.keys())
                what = f"{len(members)} of {size} scored by {scoring_id!r}, missing {_some(others)}"
                for rollout_id, at_ms in members.items():
                    yield Wait(rollout_id, group_id, "group", what, at_ms, None, None)


def _run(rollout: Rollout) -> Run:
    return rollout.partition, rollout.first_offset


def _wait(
    request: RolloutRequest,
    reason: str,
    what: str,
    since_ms: int,
    deadline_ms: int | None,
    at: Place,
) -> Wait:
    return Wait(request.rollout_id, request.group_id, reason, what, since_ms, deadline_ms, at)


def _as_one(waits: Sequence[Wait]) -> Wait:
    """The oldest of a rollout's waits for one reason, which tells of the others too.

    A rollout waits for calls side by side; an id may be asked for, or end, more than once.
    """
    told = dict.fromkeys(wait.what for wait in waits)
    return replace(waits[0], what=_some(list(told)))


def _decided(rollout: Rollout) -> str:
    """What an agents worker has to write next."""
    body = rollout.decision.body if rollout.decision else None
    if isinstance(body, RolloutFinished):
        return f"an agents worker has to write its end: {body.status} {body.code}".rstrip()
    reason = body.reason if isinstance(body, AttemptStarted) else ""
    return f"an agents worker has to begin attempt {rollout.attempt.number + 1}: {reason:.200}"


def _some(names: Sequence[str]) -> str:
    """The first few of some names; a member that was never asked for has none."""
    if not names:
        return "members that nobody asked for"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
