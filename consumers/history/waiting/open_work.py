"""All open work, computed from the log alone: no worker is asked.

Records are taken in the order journal (from the agents' low watermark on), requests, trajectories,
scored records, and the ids of commands on the work topics. Each topic may have grown while an
earlier one was read, and the later topic takes precedence. Memory is bounded by the open work.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rollcall.consumers.agents.effects import CallModel, Step
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import START, Journal
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.agents.fold.trajectory import END
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import (
    NO_EPOCH,
    AttemptStarted,
    Event,
    Instance,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.topics import Topics

PRUNE_EVERY = 1024

Run = tuple[int, int]
"""Journal partition and first offset: unlike an id, these cannot be used again."""


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """A partition; the group's member that owns it has to act."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ScoringPosition:
    """The progress of one scoring; finished trajectories need no scored record as a proof."""

    scoring_id: str
    commits: Mapping[int, int] = field(default_factory=dict)
    above: Mapping[int, Collection[int]] = field(default_factory=dict)
    """Finished offsets above the commit."""
    live: bool = False
    """True if its group has members."""
    retired: bool = False

    def finished(self, partition: int, offset: int) -> bool:
        """Return True if it is done with a trajectory at this offset."""
        below = offset < self.commits.get(partition, 0)
        return below or offset in self.above.get(partition, ())


@dataclass(frozen=True, slots=True)
class UnstartedRequest:
    """A request that no start has counted."""

    request: RolloutRequest
    partition: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """A rollout that has ended, and the offsets of its trajectory."""

    rollout_id: str
    group_id: str
    group_size: int
    partition: int
    ended_ms: int
    offsets: list[int] = field(default_factory=list)
    scorings: tuple[str, ...] = ()
    """The scorings that its request names."""


@dataclass(eq=False)
class OpenWork:
    """The open work; takes records in the order that the module states."""

    topics: Topics
    world: FoldContext
    scorings: Sequence[ScoringPosition] = ()
    group_id: str = field(default="", kw_only=True)
    """A group whose scored members are included even if none of it is open."""
    oldest_ms: int | None = field(default=None, init=False)
    """No relevant score is older than this."""

    def __post_init__(self) -> None:
        self.journals: dict[int, Journal] = {}
        self.writers: dict[int, str] = {}
        """The agents worker that wrote the last entry by agents, by partition."""
        self._commits: dict[int, int] = {}
        self.touched: dict[Run, int] = {}
        """The time of the last entry of each rollout."""
        self._request_offsets: dict[Run, int] = {}
        self.unstarted: dict[Run, UnstartedRequest] = {}
        self.ended: dict[Run, EndedRollout] = {}
        self.scored: dict[str, dict[Run, int]] = defaultdict(dict)
        self.members: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self.sizes: dict[str, int] = {}
        self.sent: dict[bytes, PartitionOwner] = {}
        """The place of each sent command, by its id in hex."""
        self.in_line: dict[tuple[str, int], tuple[str, int]] = {}
        """By rollout and attempt the slots that its environment waits for, and since when."""

    # Taking

    def begin(self, partition: int, begin: Watermark, commit: int) -> None:
        """Begin the fold of a partition; trajectories of ends below
        `commit` are already written."""
        self.journals[partition] = Journal(partition, self.world, "", begin)
        self._commits[partition] = commit

    def needs(self, record: Record) -> bool:
        """Return True if an entry of the journal has to be read; called in log order."""
        return self.journals[record.partition].needs(record.offset, record.key)

    def take_event(self, event: Event, partition: int, offset: int, at_ms: int) -> None:
        """Take one entry of the journal, in log order."""
        journal, body = self.journals[partition], event.body
        if isinstance(body, (*START, *END, AttemptStarted)):
            self.writers[partition] = event.written_by
        before = journal.open.get(event.rollout_id)
        taken = journal.apply_event(event, offset, at_ms)
        rollout = journal.open.get(event.rollout_id)
        if rollout is not None:
            self.touched[run_of(rollout)] = at_ms
            if before is None and isinstance(body, RolloutStarted):
                self._request_offsets[run_of(rollout)] = body.request_offset
        elif before is not None:
            self._forget(before)
        # Trajectories of earlier ends are written, and taken when they are read.
        if taken.ended is not None and offset >= self._commits[partition]:
            self._end(taken.ended)
        if offset % PRUNE_EVERY == 0:
            journal.watermark(offset + 1)  # drops the data of ended rollouts

    def _forget(self, rollout: Rollout) -> None:
        self.touched.pop(run_of(rollout), None)
        self._request_offsets.pop(run_of(rollout), None)

    def first_requests(self) -> dict[int, int]:
        """Return where to read requests from: those of open groups, and those not started."""
        first = {p: 0 if j.last is None else j.last + 1 for p, j in self.journals.items()}
        for rollout in self.open():
            if rollout.request.group_size > 1 and run_of(rollout) in self._request_offsets:
                offset = self._request_offsets[run_of(rollout)]
                first[rollout.partition] = min(first[rollout.partition], offset)
        return first

    def take_request(
        self,
        request: RolloutRequest,
        partition: int,
        offset: int,
        at_ms: int,
        epoch: int = NO_EPOCH,
        topic_id: str = "",
    ) -> None:
        """Take one request; it waits if no start has counted it."""
        self._not_before(at_ms)
        if not self.journals[partition].chain.started(topic_id, epoch, offset):
            self.unstarted[partition, offset] = UnstartedRequest(request, partition, at_ms)

    def take_trajectory(self, trajectory: Trajectory, partition: int, offset: int) -> None:
        """Take one trajectory, which may occur more than once."""
        self._end(trajectory).offsets.append(offset)
        journal = self.journals[partition]
        rollout = journal.open.get(trajectory.rollout_id)
        if rollout is not None and rollout.first_offset == trajectory.first_offset:
            del journal.open[trajectory.rollout_id]
            self._forget(rollout)

    def _end(self, trajectory: Trajectory) -> EndedRollout:
        run = trajectory.journal_partition, trajectory.first_offset
        if run not in self.ended:
            request = trajectory.request
            group = (request.group_id, request.group_size) if request else ("", 1)
            place = trajectory.journal_partition, trajectory.ended_ms
            named = request.scorings if request else ()
            self.ended[run] = EndedRollout(trajectory.rollout_id, *group, *place, scorings=named)
            self._not_before(trajectory.started_ms)
        return self.ended[run]

    def _not_before(self, at_ms: int) -> None:
        self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)

    def scored_keys(self) -> set[bytes]:
        """Return the keys of scored records that concern open work."""
        keys = {self.group_id, *(e.group_id or e.rollout_id for e in self.ended.values())}
        keys |= {request.group_id for request in self.requests() if request.group_size > 1}
        return {key.encode(errors="surrogateescape") for key in keys if key}

    def take_scored(self, scored: ScoredTrajectory, at_ms: int) -> None:
        """Take one scored record; the first of each scoring counts."""
        trajectory, request = scored.trajectory, scored.trajectory.request
        run = trajectory.journal_partition, trajectory.first_offset
        self.scored[scored.scoring_id].setdefault(run, at_ms)
        if request is not None and request.group_id and request.group_size > 1:
            self.sizes[request.group_id] = request.group_size
            members = self.members[scored.scoring_id, request.group_id]
            members.setdefault(trajectory.rollout_id, at_ms)

    def wanted_commands(self) -> dict[tuple[str, str], int]:
        """Return the groups and topics to search for commands, with the time to begin from."""
        since: dict[tuple[str, str], int] = {}
        for rollout in self.open():
            for waits in rollout.attempt.outstanding.values():
                work = self._work(rollout, waits)
                since[work] = min(since.get(work, waits.opened_ms), waits.opened_ms)
        return since

    def wanted_keys(self) -> set[bytes]:
        """Return the record keys of these commands."""
        return {
            rollout.request.rollout_id.encode()
            for rollout in self.open()
            if rollout.attempt.outstanding
        }

    def take_command(self, name: bytes, place: PartitionOwner) -> None:
        """Note that a command under one of these keys was sent; `name` is its id
        in hex, from its header."""
        self.sent[name] = place

    def first_opening_ms(self) -> int | None:
        """Return the time since which the oldest open step waits; None if there is none."""
        since = (
            waits.opened_ms
            for rollout in self.open()
            for waits in rollout.attempt.outstanding.values()
            if not isinstance(waits.effect, CallModel)
        )
        return min(since, default=None)

    def take_instance(self, instance: Instance, at_ms: int) -> None:
        """Take an event of a box or of a place in line; the last one of an attempt counts."""
        whose = instance.rollout_id, instance.attempt
        if instance.kind == "waiting":
            self.in_line[whose] = instance.reason, at_ms
        else:
            self.in_line.pop(whose, None)

    # Results

    def asked_of(self, run_id: str, policy_id: str) -> set[str]:
        """Return ids of open or unstarted rollouts that are of the run, or that use the policy."""
        rollout_ids = {
            request.rollout_id
            for request in self.requests()
            if (run_id and request.run_id == run_id) or request.policy_id == policy_id
        }
        for rollout in self.open():
            sequences = (waits.sequence for waits in rollout.attempt.outstanding.values())
            if any(sequence and sequence.policy_id == policy_id for sequence in sequences):
                rollout_ids.add(rollout.request.rollout_id)
        return rollout_ids

    def open(self) -> Iterator[Rollout]:
        """Yield every rollout that has not ended."""
        for journal in self.journals.values():
            yield from journal.open.values()

    def requests(self) -> Iterator[RolloutRequest]:
        """Yield the requests of all open and unstarted rollouts."""
        yield from (rollout.request for rollout in self.open())
        yield from (unstarted.request for unstarted in self.unstarted.values())

    def place_of(self, rollout: Rollout, waits: OutstandingEffect) -> PartitionOwner | None:
        """Return the place of an effect's command; None if it has not been sent."""
        place = rollout.attempt.number, waits.position, waits.tries
        return self.sent.get(command_id(rollout.request.rollout_id, *place).hex().encode())

    def has_begun(self, rollout: Rollout) -> bool:
        """Return True if an open rollout's first command was sent."""
        waits = rollout.attempt.outstanding.values()
        return not rollout.at_first_command() or any(self.place_of(rollout, w) for w in waits)

    def unsent_calls(self) -> Iterator[tuple[Rollout, OutstandingEffect]]:
        """Yield the calls of open rollouts that have not been sent."""
        for rollout in self.open():
            for waits in rollout.attempt.outstanding.values():
                if isinstance(waits.effect, CallModel) and self.place_of(rollout, waits) is None:
                    yield rollout, waits

    def asked_for(self, rollout: Rollout, waits: OutstandingEffect) -> str:
        """Return the policy or the environment that a command is for."""
        effect = waits.effect
        if isinstance(effect, CallModel):
            return effect.policy_id or rollout.request.policy_id
        opened = rollout.attempt.sessions[effect.session] if isinstance(effect, Step) else None
        environment = opened.environment if opened else getattr(effect, "environment", None)
        return str(environment or rollout.request.task.environment)

    def _work(self, rollout: Rollout, waits: OutstandingEffect) -> tuple[str, str]:
        """Return the group and topic of a command."""
        if isinstance(waits.effect, CallModel):
            policy = self.asked_for(rollout, waits)
            return self.topics.group("models", policy), self.topics.calls(policy)
        return self.topics.group("environments"), self.topics.steps


def run_of(rollout: Rollout) -> Run:
    """Return the identity of a rollout, unique even if its id is used again."""
    return rollout.partition, rollout.first_offset
