"""The agents group: starts requests, folds journals, carries out what the folds give rise to.

A request becomes one RolloutStarted (or RolloutRefused) in the journal partition of the same
number; whoever owns that partition runs the rollout. Everything the fold yields is an output of the
event that caused it, so the journal's commit waits until all of it is acked.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from inspect import getsource
from itertools import islice
from typing import Any

import structlog

from consumers.agents.fold.commands import Command
from consumers.agents.fold.journal import START, START_AFTER_GAP, Journal, Taken
from consumers.agents.fold.rollout import Effect, Rollout
from consumers.agents.fold.world import World
from consumers.agents.lookback import Written
from consumers.agents.programs import program_of
from consumers.agents.quota import Quota
from consumers.agents.recent_requests import Asked, First
from consumers.agents.watermark import Watermark, read_watermark
from consumers.agents.wishes import Program
from consumers.answers import event_of
from consumers.bare_trajectory import barer
from consumers.clock import Clock, LogClock, steady_wall
from consumers.control_reader import ControlReader
from consumers.log.protocols import Held, Log, Record
from consumers.loop.dead_letters import DeadLetters
from consumers.loop.partition_progress import PartitionProgress
from consumers.time_guard import Bar, Guard
from producers.publisher import Publisher
from schemas.bounds import check_names, check_request, check_sampling, fitting
from schemas.codec import Codec
from schemas.errors import (
    KilledWorkers,
    NoTopic,
    Refused,
    RequestsSkipped,
    Skipped,
    TooLarge,
    TopicRecreated,
    TopicsDiffer,
    Unavailable,
    Unfit,
    WireError,
    WorkFailed,
)
from schemas.foreign_text import plain, raised
from schemas.headers import REPLAYED_FROM, full_headers, hot_headers
from schemas.ids import digest
from schemas.messages import (
    REPEATED,
    AttemptStarted,
    CallFailed,
    Control,
    EnvironmentStep,
    Event,
    ModelCall,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Trajectory,
)
from schemas.topics import POLICY_ID, Topics

DUE_EVERY_S = 0.5
CONTROL_EVERY_S = 0.2
HEAR_S = 10.0
LOOK_BACK_S = 0.1
"""Of one turn, for reading other topics back."""
AT_ONCE = 8
"""So many windows of requests are read back at a time; each has a client of its own."""
BESIDE = ("2;", "1;")
"""Before the id of the journal's topic, in the commit metadata of requests: as it is written, and
as it was. Whoever knows only the old one takes all behind it for the id, also a mark of deaths."""
REASON = 2000
"""Characters of a reason that go into the journal."""
COURTESY = ("close", "abort")
PROCESS = (Unfit, Unavailable)
"""What concerns all rollouts alike; anything else that is raised for one ends that one."""
UNREAD = {KilledWorkers: "killed_worker", Skipped: "skipped"}
"""Why a request is refused unread, by its error; the others say that it cannot be read."""
BAD_WORDS = 10_000
"""Records that are no words of `control`, kept until it is known whose they are to bury."""
CONTROL_OWNER = 0
"""Whoever has this partition of the requests buries them."""

log = structlog.get_logger()


@cache
def program_digest(program: Program) -> str:
    """Names the source of a program; empty where there is no source to be had."""
    try:
        return blake2b(getsource(program).encode(), digest_size=8).hexdigest()
    except (OSError, TypeError):
        return ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much one worker takes on; 0 is no limit."""

    max_live: int = 4000
    max_running_per_user: int = 0
    max_held: int = 40_000
    """Rollouts that quotas hold back; they take memory, and no part in `max_live`."""


@dataclass(slots=True)
class Owned:
    """One journal partition in this worker's hands."""

    journal: Journal
    progress: PartitionProgress
    clock: LogClock
    """The time that deadlines of its rollouts are held against."""
    word: str
    """The commit metadata found; kept until the fold is complete as of a commit."""
    reset: bool
    """Nobody left word where to begin: fold all of it, then send again what is outstanding."""
    silent_until: int
    """Below this, what the fold gives rise to was done before."""
    quota: bool
    """Whether first commands may have been held back, here or by whoever had it before."""
    folded: bool = False
    """Whether everything below `silent_until` is known."""
    caught_up: bool = False
    starting: set[int] = field(default_factory=set)
    """Offsets of requests whose starts this worker wrote and has not read back."""
    read: int = 0
    """What lies below has been folded."""
    written: Written | None = None
    """After a reset, the trajectories that are there."""

    def looks_back(self) -> bool:
        return self.written is not None and not self.written.known

    def lacks(self, effect: Effect) -> bool:
        """Whether an effect of what was folded again has to be carried out."""
        return (
            isinstance(effect, Trajectory)
            and self.written is not None
            and (effect not in self.written)
        )

    def forget(self) -> None:
        """Let go of what no commit to come needs, while history is only folded again."""
        below = min(self.read, self.progress.next_offset)
        if below >= self.journal.bulk_low:
            self.journal.watermark(below)


@dataclass(slots=True)
class Words:
    """The `control` topic as a table; the last pause or resume wins, cancels stay."""

    rollouts: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    paused: bool = False

    def take(self, word: Control) -> None:
        if word.kind == "cancel" and word.rollout_id:
            self.rollouts[word.rollout_id] = word.reason
        elif word.kind == "cancel" and word.group_id:
            self.groups[word.group_id] = word.reason
        elif word.kind in ("pause", "resume"):
            self.paused = word.kind == "pause"

    def cancels(self, request: RolloutRequest) -> str | None:
        """The reason why this request is to be cancelled, None when it is not."""
        by_group = self.groups.get(request.group_id) if request.group_id else None
        return self.rollouts.get(request.rollout_id, by_group)


class Agents:
    """The role of the agents group."""

    poll_s = 0.02

    def __init__(
        self,
        name: str,
        log_: Log,
        codec: Codec,
        topics: Topics,
        commands: Publisher,
        trajectories: Publisher,
        letters: DeadLetters,
        *,
        capacity: Capacity | None = None,
        guard: Guard | None = None,
        programs: Callable[[str], Program] = program_of,
        clock: Callable[[], float] = time.monotonic,
        wall: Clock | None = None,
        accept: bool = False,
    ) -> None:
        self.name = name
        self.log = log_
        self.codec = codec
        self.names = topics
        self.topics: Sequence[str] = (topics.requests, topics.events)
        self.journals: Sequence[str] = (topics.events,)
        self.commands = commands
        self.trajectories = trajectories
        self.capacity = capacity or Capacity()
        self.quota = Quota(self.capacity.max_running_per_user)
        self.programs = programs
        self._bar = Bar(guard or nullcontext())
        self.world = World(programs, random.Random, self._bar)
        self.wall = wall or steady_wall()
        self.accept = accept
        self.letters = letters
        self.clock = clock
        self.owned: dict[int, Owned] = {}
        self.counts: Counter[str] = Counter()
        self.words = Words()
        self._from: dict[int, int] = {}
        self._asked: dict[int, Asked] = {}
        self._unsent: list[tuple[Effect, int, Record | None]] = []
        self._unwritten: dict[int, list[tuple[Event, Record | None]]] = {}
        """By partition what waits to be written in its order: the chain of requests has no gap."""
        self._call_topics: dict[str, str] = {}
        self._ids = {topic: log_.topic_id(topic) for topic in self.topics}
        self._control = ControlReader(log_, codec, topics, unreadable=self._note_bad_word)
        self._bad_words: deque[tuple[Record, WireError]] = deque(maxlen=BAD_WORDS)
        self._deadly: dict[tuple[int, int], str] = {}
        """Partition and offset of events that no program may learn of any more, and why."""
        self._control_due = self._due = 0.0
        self._hear()

    def expects(self, topic: str) -> type:
        return RolloutRequest if topic == self.names.requests else Event

    # Partitions

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        if held.topic == self.names.requests:
            if held.metadata.startswith(BESIDE) and not self.accept:
                self._check_id(self.names.events, held.metadata[len(BESIDE[0]) :])
            self._from[held.partition] = 0 if self.accept else progress.next_offset
            self._asked[held.partition] = Asked(
                self.log, held.topic, held.partition, progress.next_offset
            )
            return progress.next_offset
        found = read_watermark(held.metadata)
        reset = held.committed is None or found is None
        if found is None or reset:
            begin = Watermark(held.log_start)
            progress.next_offset = progress.floor = begin.low
        else:
            begin = found
            self._check_id(self.names.requests, begin.requests)
            if self.accept and begin.low < held.log_start:
                begin = replace(begin, last=None)
        journal = Journal(held.partition, self.world, self.name, begin)
        until = held.log_end if reset else progress.next_offset
        word = "" if reset else held.metadata
        folded = begin.low >= until
        quota = bool(self.quota.most) or begin.quota
        clock = LogClock(self.wall)
        self.owned[held.partition] = Owned(
            journal, progress, clock, word, reset, until, quota, folded
        )
        if begin.stragglers:
            progress.needs = journal.needs
        if reset and not folded:
            there = Written(self.log, self.codec, self.names.trajectories, held.partition)
            self.owned[held.partition].written = there
        return begin.low

    def _check_id(self, topic: str, known: str) -> None:
        if known and known != self._ids[topic]:
            raise TopicRecreated(_recreated(topic, self.names))

    def dropped(self, progress: PartitionProgress) -> None:
        if progress.topic == self.names.requests:
            self._from.pop(progress.number, None)
            if progress.number in self._asked:
                self._asked.pop(progress.number).close()
            return
        owned = self.owned.pop(progress.number)
        if owned.written is not None:
            owned.written.close()
        for rollout in owned.journal.open.values():
            self.quota.leave(rollout)
            rollout.attempt.close_program()

    def at_end(self, progress: PartitionProgress) -> None:
        if progress.topic == self.names.events:
            self._caught_up(self.owned[progress.number])

    def commit_metadata(self, progress: PartitionProgress) -> str:
        if progress.topic == self.names.requests:
            return BESIDE[0] + self._ids[self.names.events]
        owned = self.owned[progress.number]
        if not owned.folded:
            owned.forget()
            return owned.word
        watermark = owned.journal.watermark(progress.next_offset)
        requests = self._ids[self.names.requests]
        return replace(watermark, requests=requests, quota=self._held_back(owned)).write()

    def _held_back(self, owned: Owned) -> bool:
        """Whether an heir must think of first commands that may never have been sent.

        What an earlier owner held back is sent again when the journal is read, but no commit waits
        for those acks: an answer has to come first.
        """
        if owned.quota and owned.caught_up and not self.quota.most:
            owned.quota = any(
                rollout.at_first_command() and rollout.first_offset < owned.progress.end_at_assign
                for rollout in owned.journal.open.values()
            )
        return owned.quota

    def waits(self, progress: PartitionProgress) -> bool:
        """Whether what a reset or a takeover has to know first is still read back.

        Requests wait also while agents are paused; after a reset, until their journal tells which
        of them were started long ago.
        """
        owned = self.owned.get(progress.number)
        if progress.topic == self.names.events:
            return owned is not None and owned.looks_back()
        unfolded = owned is not None and owned.reset and not owned.caught_up
        return self.words.paused or unfolded or not self._asked[progress.number].known

    def full(self, progress: PartitionProgress) -> bool:
        """Requests are paused, not the journal: answers must flow for capacity to come back."""
        most = self.capacity.max_live
        if progress.topic == self.names.events or not most:
            return False
        # No partition may take all the room: its keys lead to one partition of calls and steps.
        share = -(-most // max(1, len(self._from)))
        here = self.live(progress.number) if progress.number in self.owned else 0
        if progress.paused:
            most, share = max(1, most * 7 // 8), max(1, share * 7 // 8)
        held = 0 < self.capacity.max_held <= self.quota.held.total()
        return held or here >= share or sum(map(self.live, self.owned)) >= most

    def live(self, partition: int) -> int:
        """Rollouts that run, also those whose start is on its way; not what a quota holds back."""
        owned = self.owned[partition]
        return len(owned.journal.open) + len(owned.starting) - self.quota.held[partition]

    def in_flight(self) -> int:
        return 0

    # Records

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        fresh = {number for number, owned in self.owned.items() if owned.caught_up}
        newest: dict[int, int] = {}
        for record, message in batch:
            if record.topic == self.names.events:
                self._event(record, message)
                newest[record.partition] = record.timestamp_ms
            else:
                self._request(record, message)
            record.closed = True
        for partition in fresh & newest.keys():
            self.owned[partition].clock.saw(newest[partition])

    def unreadable(self, record: Record, error: WireError) -> None:
        """Where a request was, the journal says that it was refused."""
        if record.topic == self.names.requests:
            rollout_id = (record.key or b"").decode("utf-8", "replace")
            if record.key:
                self._asked[record.partition].note(record.key, record)
            span, code = self._span(record), UNREAD.get(type(error), "unreadable")
            if not self._counted(record):
                self._refuse(record, span, rollout_id, code, str(error), None)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        """Refuse a request that kills; an event counts, but its rollout's program runs no more."""
        if record.topic == self.names.requests:
            self.unreadable(record, error)
            return False
        self._deadly[record.partition, record.offset] = str(error)
        self.handle([(record, message)])
        return True

    def _request(self, record: Record, request: RolloutRequest) -> None:
        span = self._span(record)
        first = self._asked_before(record, request.rollout_id)
        if self._counted(record):
            return
        if first is not None:
            self._repeated(record, span, request.rollout_id, first)
            return
        try:
            check_request(request)
            digest_ = self._program_digest(request.agent)
            self._check_policy(request.policy_id)
        except Refused as error:
            self._refuse(record, span, request.rollout_id, "refused", str(error), request)
            return
        body = RolloutStarted(request, span, record.offset, digest_)
        if not self._write(self._event_of(request.rollout_id, body), record.partition, record):
            msg = "the request is too large for the journal"
            self._refuse(record, span, request.rollout_id, "too_large", msg, None)
        elif record.partition in self.owned:
            self.owned[record.partition].starting.add(record.offset)

    def _counted(self, record: Record) -> bool:
        """Whether the journal says that a request was started, so that no start of it can count."""
        owned = self.owned.get(record.partition)
        last = owned.journal.last if owned else None
        return last is not None and record.offset <= last

    def _asked_before(self, record: Record, rollout_id: str) -> First | None:
        """The request that this one repeats, in its own partition or in another one held here.

        Of two in different partitions the one that was appended first is never refused, whatever is
        read first: so both may run, where nobody holds both partitions, and never none.
        """
        named, here = rollout_id.encode(), self._asked[record.partition]
        first = here.first(named, record.offset)
        here.note(named, record)
        if first is None:
            own = First(record.timestamp_ms, record.partition, record.offset)
            there = (asked.first(named) for asked in self._asked.values() if asked.known)
            first = min((own, *filter(None, there)))
            first = None if first == own else first
        replayed = first is not None and any(k == REPLAYED_FROM for k, _ in record.headers or ())
        return None if replayed else first

    def _repeated(self, record: Record, span: int, rollout_id: str, first: First) -> None:
        """Refuse what was asked for before.

        It is no attempt of that rollout, and no member of its run: nobody takes its end for the
        rollout's own.
        """
        reason = (
            f"asked for before, at {first.partition}@{first.offset} of {record.topic}; "
            "to run it again, ask under a new id: `rollcall submit --again`"
        )
        self._refuse(record, span, rollout_id, REPEATED, reason, None, attempt=0)

    def _program_digest(self, name: str) -> str:
        """Find a program and name its source; raises Refused."""
        try:
            return program_digest(self.programs(name))
        except (Refused, *PROCESS):
            raise
        except Exception as error:  # a user's module may do anything when it is looked at
            msg = f"program {name!r} cannot be had: {raised(error)}"
            raise Refused(msg) from error

    def _check_policy(self, policy_id: str) -> None:
        try:
            self.log.partitions(self.names.calls(policy_id))
        except TopicsDiffer as error:
            msg = (
                f"unknown policy {policy_id!r}; its calls topic is missing, add it with "
                f"`rollcall topics apply --policy {policy_id}`"
            )
            raise Refused(msg) from error

    def _refuse(
        self,
        record: Record,
        span: int,
        rollout_id: str,
        code: str,
        reason: str,
        request: RolloutRequest | None,
        *,
        attempt: int = 1,
    ) -> None:
        unnamed = f"unreadable-{record.partition}-{record.offset}"
        rollout_id = fitting(rollout_id) or unnamed
        kept = request if request is not None and _names_fit(request) else None
        reason = plain(reason, REASON)
        body = RolloutRefused(code, reason, span, record.offset, kept)
        event = self._event_of(rollout_id, body, attempt)
        if not self._write(event, record.partition, record):
            bare = replace(body, request=None)
            self._write(replace(event, body=bare), record.partition, record)
        log.warning("request_refused", rollout_id=rollout_id, code=code, reason=reason)

    def _span(self, record: Record) -> int:
        """The position before this request; the next one begins behind it."""
        began = self._from.get(record.partition, record.offset)
        self._from[record.partition] = record.offset + 1
        return began

    def _event_of(
        self, rollout_id: str, body: RolloutStarted | RolloutRefused, attempt: int = 1
    ) -> Event:
        return Event.decision(rollout_id, attempt, self.name, body)

    def _event(self, record: Record, event: Event) -> None:
        owned = self.owned[record.partition]
        silent = record.offset < owned.silent_until
        owned.folded = owned.folded or not silent
        owned.read = record.offset + 1
        place = record.partition, record.offset
        self._bar.reason = self._deadly.pop(place, "") if self._deadly else ""
        taken = owned.journal.take(event, record.offset, record.timestamp_ms, silent=silent)
        if isinstance(event.body, START):
            ours = (
                record.offset >= owned.progress.end_at_assign  # else a dead namesake's
                and event.body.request_offset in owned.starting
            )
            owned.starting.discard(event.body.request_offset)
            if ours and taken.reason == START_AFTER_GAP:
                raise RequestsSkipped(_skipped(record.partition, event.body, owned.journal))
            if self._held_by_quota(taken, silent=silent):
                taken.effects = ()
        if taken.effects:
            self._carry_out_read(owned, record, taken, silent=silent)
        owned.folded = owned.folded or record.offset + 1 >= owned.silent_until
        if not owned.caught_up and record.offset + 1 >= owned.progress.end_at_assign:
            self._caught_up(owned)

    def _carry_out_read(self, owned: Owned, record: Record, taken: Taken, *, silent: bool) -> None:
        """Carry out what a read event gives rise to; below the commit that was done before."""
        if taken.ended is not None and taken.rollout is not None:
            self.quota.leave(taken.rollout)
        effects = taken.effects
        if silent:
            effects = [effect for effect in effects if owned.lacks(effect)]
        self._carry_out(effects, record.partition, record)

    def _held_by_quota(self, start: Taken, *, silent: bool) -> bool:
        """Whether a started rollout's first command waits, as its user's quota is used up."""
        rollout = start.rollout
        if rollout is None:
            return False
        if not silent:
            self._cancel_if_asked(rollout)
        if self.quota.admit(rollout):
            return False
        self.counts["held_by_quota"] += 1
        return True

    def _caught_up(self, owned: Owned) -> None:
        """The journal is read to the end it had at assignment: act on what is still open."""
        owned.folded = True
        if owned.caught_up:
            return
        owned.caught_up = True
        owned.written = None
        for rollout in list(owned.journal.open.values()):
            self._cancel_if_asked(rollout)
            held_before = owned.quota and rollout.at_first_command()
            if owned.quota and rollout.heard_ms:  # it ran by then; since when, nobody wrote down
                rollout.runs_ms = rollout.heard_ms
            if rollout.admitted and (owned.reset or held_before):
                self._send_again(rollout, fresh=held_before)
            elif rollout.decision is not None:
                self._carry_out([rollout.decision], rollout.partition, None)
        log.info("journal_folded", partition=owned.journal.partition, open=len(owned.journal.open))

    def _send_again(self, rollout: Rollout, *, fresh: bool) -> None:
        """Send what a rollout waits for; `fresh` where it may never have been sent before."""
        if fresh:
            rollout.restart_clock(int(self.owned[rollout.partition].clock() * 1000))
        try:
            effects = rollout.resend()
        except Exception as error:
            effects = [rollout.give_up(error)]
        self._carry_out(effects, rollout.partition, None)

    def _cancel_if_asked(self, rollout: Rollout) -> None:
        reason = self.words.cancels(rollout.request)
        if reason is not None:
            self._write(rollout.cancelled(reason), rollout.partition)

    # The way out

    def _carry_out(self, effects: Iterable[Effect], partition: int, cause: Record | None) -> None:
        """Write what one rollout gives rise to; what cannot be written ends that rollout alone."""
        for effect in effects:
            try:
                self._send(effect, partition, cause)
            except Unavailable as error:
                self._send_later(effect, partition, cause, error)
            except Unfit:
                raise
            except Exception as error:
                if isinstance(effect, Trajectory):
                    raise  # of which too little is left to leave anything out
                log.warning("rollout_broken", rollout_id=effect.rollout_id, error=raised(error))
                self._write_bare_end(effect, error, partition, cause)

    def _send(self, effect: Effect, partition: int, cause: Record | None) -> None:
        if isinstance(effect, ModelCall):
            self._command(self._calls_topic(effect.policy_id), effect, cause)
        elif isinstance(effect, EnvironmentStep):
            self._command(self.names.steps, effect, cause)
        elif isinstance(effect, Trajectory):
            self._trajectory(effect, cause)
        elif not self._write(effect, partition, cause):
            msg = f"its {type(effect.body).__name__} is too large for the journal"
            raise WireError(msg)

    def _write_bare_end(
        self, effect: Command | Event, error: Exception, partition: int, cause: Record | None
    ) -> None:
        """End a rollout of which an effect cannot be written, in as few words as there are."""
        if not isinstance(effect, Event) and effect.kind in COURTESY:
            return
        begins = isinstance(effect, Event) and isinstance(effect.body, AttemptStarted)
        body = RolloutFinished("failed", "broken", raised(error, REASON))
        attempt = effect.attempt - begins
        event = Event.decision(effect.rollout_id, attempt, self.name, body)
        self._write(event, partition, cause)

    def _calls_topic(self, policy_id: str) -> str:
        topic = self._call_topics.get(policy_id)
        if topic is None:
            topic = self._call_topics[policy_id] = self.names.calls(policy_id)
        return topic

    def _command(self, topic: str, command: Command, cause: Record | None) -> None:
        try:
            if isinstance(command, ModelCall):
                _check_call(command)
            value = self.codec.encode(topic, command)
            self.commands.send(
                topic,
                command.rollout_id,
                value,
                headers=hot_headers(type(command).__name__, command.command_id),
                cause=cause,
                refused=partial(self._turned_away, command, cause),
            )
        except TopicsDiffer:
            msg = f"no topic {topic:.300}: unknown policy"
            self._fail(command, CallFailed("unknown_policy", msg, False), cause)
        except TooLarge as error:
            self._fail(command, CallFailed(error.code, str(error), False), cause)
        except Refused as error:
            self._fail(command, CallFailed("out_of_bounds", str(error), False), cause)
        except WireError as error:
            self._fail(command, CallFailed("unwritable", plain(str(error), REASON), False), cause)
        except Unavailable as error:
            self._send_later(command, command.answer_partition, cause, error)

    def _send_later(
        self, effect: Effect, partition: int, cause: Record | None, error: Unavailable
    ) -> None:
        _owe(cause)
        if not self._unsent:  # said once for all that waits with it
            log.warning("sending_waits", kind=type(effect).__name__, error=str(error))
        self._unsent.append((effect, partition, cause))

    def _retry(self) -> None:
        """Try again what could not be encoded because registry or store was away."""
        for partition, events in list(self._unwritten.items()):
            del self._unwritten[partition]
            for event, cause in events:
                if not self._write(event, partition, cause):
                    self._write_refusal(event, partition, cause)
                _pay(cause)
        unsent, self._unsent = self._unsent, []
        for effect, partition, cause in unsent:
            self._carry_out([effect], partition, cause)
            _pay(cause)

    def _write_refusal(self, event: Event, partition: int, cause: Record | None) -> None:
        """In place of what is too large for the journal after all."""
        body = event.body
        error = WireError(f"its {type(body).__name__} is too large for the journal")
        if not isinstance(body, START):
            self._write_bare_end(event, error, partition, cause)
            return
        why = "too_large", str(error)
        if isinstance(body, RolloutRefused):
            why = body.code, body.reason
        bare = RolloutRefused(*why, body.from_offset, body.request_offset)
        self._write(replace(event, body=bare), partition, cause)

    def _turned_away(self, command: Command, cause: Record | None, error: WorkFailed) -> None:
        """Answer a command that its topic would not have, though it was sent."""
        unknown = isinstance(error, NoTopic) and isinstance(command, ModelCall)
        code = "unknown_policy" if unknown else error.code
        self._fail(command, CallFailed(code, str(error), False), cause)

    def _fail(self, command: Command, body: CallFailed, cause: Record | None) -> None:
        """Answer a command that cannot be sent; a courtesy is let go."""
        if command.kind not in COURTESY:
            self._write(event_of(command, body, self.name), command.answer_partition, cause)

    def _write(self, event: Event, partition: int, cause: Record | None = None) -> bool:
        """Write an entry of the journal; False where it is too large for its topic.

        Where it cannot be encoded now it is written later, and so is what comes after it.
        """
        try:
            if partition in self._unwritten:
                self._write_later(event, partition, cause)
                return True
            self.commands.send(
                self.names.events,
                event.rollout_id,
                self.codec.encode(self.names.events, event),
                partition=partition,
                headers=hot_headers(type(event.body).__name__, event.command_id),
                cause=cause,
            )
        except TooLarge:
            return False
        except Unavailable as error:
            self._write_later(event, partition, cause)
            log.warning("writing_waits", partition=partition, error=str(error))
        return True

    def _write_later(self, event: Event, partition: int, cause: Record | None) -> None:
        _owe(cause)
        self._unwritten.setdefault(partition, []).append((event, cause))

    def _trajectory(self, trajectory: Trajectory, cause: Record | None) -> None:
        request = trajectory.request
        run_id = request.run_id if request else ""
        ce_id = digest(trajectory.rollout_id, trajectory.attempt).hex()
        headers = full_headers(
            "Trajectory",
            ce_id,
            f"{self.name}/{run_id}",
            trajectory.rollout_id,
            trajectory.rollout_id,
        )
        try:
            self._send_trajectory(trajectory, headers, cause)
        except PROCESS:
            raise
        except Exception as error:
            self._send_bare(trajectory, error, headers, cause)

    def _send_bare(
        self, trajectory: Trajectory, error: Exception, headers: Any, cause: Record | None
    ) -> None:
        """Write as much of a trajectory as can be; it says why there is not more."""
        code = "too_large" if isinstance(error, TooLarge) else "unwritable"
        told = replace(trajectory, code=code, reason=plain(str(error), REASON))
        for bare in barer(told):
            with suppress(TooLarge, WireError):
                self._send_trajectory(bare, headers, cause)
                return
        raise error

    def _send_barest(
        self, trajectory: Trajectory, headers: Any, cause: Record | None, error: WorkFailed
    ) -> None:
        """Write next to nothing of a trajectory that its topic refused."""
        *_, barest = barer(replace(trajectory, code=error.code, reason=str(error)))
        self._send_trajectory(barest, headers, cause, last=True)

    def _send_trajectory(
        self, trajectory: Trajectory, headers: Any, cause: Record | None, *, last: bool = False
    ) -> None:
        self.trajectories.send(
            self.names.trajectories,
            trajectory.rollout_id,
            self.codec.encode(self.names.trajectories, trajectory),
            partition=trajectory.journal_partition,
            headers=headers,
            cause=cause,
            refused=None if last else partial(self._send_barest, trajectory, headers, cause),
        )

    # What is due

    def tick(self) -> None:
        now = self.wall()
        self._look_back()
        for rollout in self.quota.ready():
            self._send_again(rollout, fresh=True)
        if now >= self._control_due:
            self._control_due = now + CONTROL_EVERY_S
            self._listen()
            self._bury_bad_words()
        if now >= self._due:
            self._due = now + DUE_EVERY_S
            self._retry()
            self._deadlines()

    def _deadlines(self) -> None:
        for owned in self.owned.values():
            if not owned.caught_up:
                continue
            now_ms = int(owned.clock() * 1000)
            for rollout in owned.journal.open.values():
                if rollout.admitted:
                    self._overdue(rollout, now_ms)

    def _overdue(self, rollout: Rollout, now_ms: int) -> None:
        try:
            events = rollout.overdue(now_ms)
        except Exception as error:
            events = [rollout.give_up(error)]
        for event in events:
            self._write(event, rollout.partition)

    def _look_back(self) -> None:
        """Read on in what a reset has to know, one partition at a time."""
        until = self.clock() + LOOK_BACK_S
        unknown = (asked for asked in self._asked.values() if not asked.known)
        for asked in islice(unknown, AT_ONCE):
            while asked.read() and self.clock() < until:
                pass
        for owned in self.owned.values():
            if owned.written is None or owned.written.known:
                continue
            while owned.written.read() and self.clock() < until:
                pass
            if not owned.written.known:
                return

    def _hear(self) -> None:
        """Read `control` to its end before anything is started: agents may have been paused."""
        until = self.clock() + HEAR_S
        while not self._control.caught_up() and self.clock() < until:
            self._listen(0.1)

    def _listen(self, timeout_s: float = 0.0) -> None:
        ids, groups = set[str](), set[str]()
        for _, word in self._control.poll(timeout_s):
            self.words.take(word)
            if word.kind == "cancel":
                (ids if word.rollout_id else groups).add(word.rollout_id or word.group_id)
        if ids or groups:
            self._cancel(ids, groups)

    def _note_bad_word(self, record: Record, error: WireError) -> None:
        self._bad_words.append((record, error))

    def _bury_bad_words(self) -> None:
        """Every worker reads what is no word of `control`; one of them buries it."""
        if self._bad_words and CONTROL_OWNER in self._from:
            self.letters.bury_once(self._bad_words)
            self._bad_words.clear()

    def _cancel(self, ids: set[str], groups: set[str]) -> None:
        """Cancel the rollouts that were named; groups are looked for once, however many there are.

        An empty group names nobody: most rollouts are of none.
        """
        groups.discard("")
        for owned in self.owned.values():
            live = owned.journal.open
            named = {each: live[each] for each in ids & live.keys()}
            if groups:
                named |= {each: r for each, r in live.items() if r.request.group_id in groups}
            for rollout in named.values():
                self._cancel_if_asked(rollout)


def _check_call(call: ModelCall) -> None:
    """Raises TopicsDiffer or Refused for what a program may wish and nobody can be asked."""
    if not POLICY_ID.fullmatch(call.policy_id):
        raise TopicsDiffer(call.policy_id)
    check_sampling(call.sampling)


def _names_fit(request: RolloutRequest) -> bool:
    try:
        check_names(request)
    except Refused:
        return False
    return True


def _owe(cause: Record | None) -> None:
    """Have a record wait for what is sent later."""
    if cause is not None:
        cause.sent += 1


def _pay(cause: Record | None) -> None:
    """It was sent; the record waits for the acks of that instead."""
    if cause is not None:
        cause.acked += 1


def _skipped(partition: int, body: RolloutStarted | RolloutRefused, journal: Journal) -> str:
    return (
        f"requests of partition {partition} were read from offset {body.from_offset}, but the last "
        f"one started is {journal.last}: somebody reset the group, or retention took requests that "
        "nobody had started. To go on without them restart with --accept-truncation"
    )


def _recreated(topic: str, names: Topics) -> str:
    if topic == names.requests:
        return (
            f"{topic} was deleted and made anew, but {names.events} was not: its new requests have "
            "offsets that the journal has counted already, so none of them would ever start. "
            f"Recreate {names.events} and {names.trajectories} too, or use another prefix"
        )
    return (
        f"{topic} was deleted and made anew: the rollouts that were open are lost, and their "
        "requests will not be read again. To go on without them restart with --accept-truncation"
    )
