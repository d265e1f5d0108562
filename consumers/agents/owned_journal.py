"""One journal partition in this worker's hands: folded, carried out, and held against the clock."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from consumers.agents.call_pacing import CallPacing
from consumers.agents.control_state import ControlState
from consumers.agents.fold.journal import START, START_AFTER_GAP, Journal, Taken
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.rollout import Effect, Rollout
from consumers.agents.lookback import Written
from consumers.agents.outbox import Outbox
from consumers.agents.rollout_quotas import RolloutQuotas
from consumers.agents.wishes import CallModel
from consumers.clock import LogClock
from consumers.log.protocols import Record
from consumers.loop.partition_progress import PartitionProgress
from consumers.time_guard import Bar
from schemas.errors import RequestsSkipped
from schemas.messages import Event, RolloutRefused, RolloutStarted, Trajectory

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hands:
    """What the journals of one worker share."""

    outbox: Outbox
    quotas: RolloutQuotas
    pacing: CallPacing
    control: ControlState
    bar: Bar
    counts: Counter[str]


@dataclass(slots=True)
class Loose:
    """Counts the acks of what is sent later than the record that gave rise to it was finished."""

    sent: int = 0
    acked: int = 0


@dataclass(slots=True)
class OwnedJournal:
    """One journal partition in this worker's hands."""

    hands: Hands
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
    may_hold_back: bool
    """Whether whoever had it before may have held commands back."""
    folded: bool = False
    """Whether everything below `silent_until` is known."""
    caught_up: bool = False
    starting: set[int] = field(default_factory=set)
    """Offsets of requests whose starts this worker wrote and has not read back."""
    read: int = 0
    """What lies below has been folded."""
    written: Written | None = None
    """After a reset, the trajectories that are there."""
    delayed: set[int] = field(default_factory=set)
    """First offsets of open rollouts of which a first command was held back, perhaps long ago."""
    loose: Loose = field(default_factory=Loose)
    deadly: dict[int, str] = field(default_factory=dict)
    """Offsets of events that no program may learn of any more, and why."""

    def take(self, event: Event, record: Record) -> None:
        """Fold one entry and carry out what it gives rise to; raises RequestsSkipped."""
        offset = record.offset
        silent = offset < self.silent_until
        self.folded = self.folded or not silent
        self.read = offset + 1
        self.hands.bar.reason = self.deadly.pop(offset, "") if self.deadly else ""
        taken = self.journal.take(event, offset, record.timestamp_ms, silent=silent)
        if isinstance(event.body, START):
            self._started(event.body, offset, taken)
            if self._held_by_quota(taken, silent=silent):
                taken.effects = ()
        if taken.effects:
            self._carry_out(taken, record, silent=silent)
        self.folded = self.folded or offset + 1 >= self.silent_until
        if not self.caught_up and offset + 1 >= self.progress.end_at_assign:
            self.catch_up()

    def _started(self, body: RolloutStarted | RolloutRefused, offset: int, taken: Taken) -> None:
        ours = (
            offset >= self.progress.end_at_assign  # else a dead namesake's
            and body.request_offset in self.starting
        )
        self.starting.discard(body.request_offset)
        if ours and taken.reason == START_AFTER_GAP:
            raise RequestsSkipped(self._skipped(body))

    def _held_by_quota(self, start: Taken, *, silent: bool) -> bool:
        """Whether a started rollout's first command waits, as its user's quota is used up."""
        rollout, quotas = start.rollout, self.hands.quotas
        if rollout is None:
            return False
        if not silent:
            self.cancel_if_asked(rollout)
        if self.caught_up:
            return not self._admit(rollout)
        if self.may_hold_back or quotas.limits(rollout.request.user):
            return True  # where the journal ends it is known whether it had begun
        quotas.run(rollout)
        return False

    def _admit(self, rollout: Rollout, *, ahead: bool = False) -> bool:
        if self.hands.quotas.admit(rollout, ahead=ahead):
            return True
        self.delayed.add(rollout.first_offset)
        self.hands.counts["held_by_quota"] += 1
        return False

    def _carry_out(self, taken: Taken, record: Record, *, silent: bool) -> None:
        """Carry out what a read event gives rise to; below the commit that was done before."""
        if taken.ended is not None and taken.rollout is not None:
            if not self.caught_up:
                self._note_begun(taken.rollout, record.timestamp_ms)
            self._leave(taken.rollout)
        elif self.caught_up and taken.rollout is not None and not taken.rollout.admitted:
            self._runs_after_all(taken.rollout)
        effects = taken.effects
        if silent:
            effects = [effect for effect in effects if self._lacks(effect)]
        effects = self.hands.pacing.now(effects, taken.rollout)
        self.hands.outbox.carry_out(effects, record.partition, record)

    def _runs_after_all(self, rollout: Rollout) -> None:
        """Its first command was answered, so whoever had it before had let it begin."""
        self.hands.quotas.leave(rollout)
        self._count_running(rollout)

    def _count_running(self, rollout: Rollout) -> None:
        self._note_begun(rollout, int(self.clock() * 1000))
        if not rollout.admitted:
            self.hands.quotas.run(rollout)
        if self.may_hold_back and rollout.heard_ms:  # it ran by then; since when, nobody knows
            rollout.runs_ms = rollout.heard_ms

    def _leave(self, rollout: Rollout) -> None:
        """It has ended, or belongs to another worker now."""
        self.hands.quotas.leave(rollout)
        self.hands.pacing.leave(rollout)
        self.delayed.discard(rollout.first_offset)

    def _note_begun(self, rollout: Rollout, now_ms: int) -> None:
        """It began before this worker knew of it: at its first answer at the latest."""
        who, hour = rollout.request.user, self.hands.quotas.hour
        hour.note_earlier(rollout.partition, who, rollout.heard_ms or now_ms)

    def _lacks(self, effect: Effect) -> bool:
        """Whether an effect of what was folded again has to be carried out."""
        return (
            isinstance(effect, Trajectory)
            and self.written is not None
            and (effect not in self.written)
        )

    def catch_up(self) -> None:
        """The journal is read to the end it had at assignment: act on what is still open."""
        self.folded = True
        if self.caught_up:
            return
        self.caught_up = True
        self.written = None
        rollouts = list(self.journal.open.values())
        if self.may_hold_back:
            self.delayed.update(rollout.first_offset for rollout in rollouts)
        began = [rollout for rollout in rollouts if self._began(rollout)]
        for rollout in began:
            self._go_on(rollout)
        self.hands.quotas.shares.held.add(self.journal.partition)
        for rollout in rollouts:
            if not rollout.admitted:
                self._begin(rollout)
        self.hands.quotas.changed()
        log.info("journal_folded", partition=self.journal.partition, open=len(rollouts))

    def _began(self, rollout: Rollout) -> bool:
        """Whether a rollout has begun, for all that the journal and the commit tell."""
        if rollout.admitted or not rollout.at_first_command():
            return True
        unsure = self.reset or self.may_hold_back or rollout.first_offset >= self.silent_until
        return not unsure

    def _go_on(self, rollout: Rollout) -> None:
        """Take over a rollout that runs; what it asked for was sent, if nobody can have held it."""
        self._count_running(rollout)
        self.cancel_if_asked(rollout)
        paced = self.hands.quotas.table.may_have_been_paced(rollout.request.user)
        if self.reset:
            self.send_again(rollout, fresh=False)
        elif self.may_hold_back and paced:
            self._ask_again(rollout)
        elif rollout.decision is not None:
            self.hands.outbox.carry_out([rollout.decision], rollout.partition, None)

    def _begin(self, rollout: Rollout) -> None:
        """Send a first command that may never have been sent, or hold it back.

        It goes ahead of what waits here already: its first command may be under way.
        """
        self.cancel_if_asked(rollout)
        if self._admit(rollout, ahead=True):
            self.send_again(rollout, fresh=True)
        elif rollout.decision is not None:
            self.hands.outbox.carry_out([rollout.decision], rollout.partition, None)

    def send_again(self, rollout: Rollout, *, fresh: bool) -> None:
        """Send what a rollout waits for; `fresh` where it may never have been sent before."""
        if fresh:
            rollout.restart_clock(int(self.clock() * 1000))
        self._send(rollout, rollout.resend, paced=True)

    def _ask_again(self, rollout: Rollout) -> None:
        """Send again calls that may have waited for their turn, and what was decided."""
        now_ms = int(self.clock() * 1000)
        waits = rollout.attempt.outstanding.values()
        calls = [each for each in waits if isinstance(each.wish, CallModel)]
        for call in calls:
            call.opened_ms = now_ms
        decided = [rollout.decision] if rollout.decision else []
        self._send(rollout, lambda: rollout.effects([*calls, *decided], silent=False), paced=True)

    def send_paced(self, rollout: Rollout, call: Outstanding) -> None:
        """Send a call whose turn has come; its clock starts now."""
        call.opened_ms = int(self.clock() * 1000)
        rollout.attempt.due_ms = min(rollout.attempt.due_ms, call.deadline_ms())
        self._send(rollout, lambda: rollout.effects([call], silent=False))

    def _send(
        self, rollout: Rollout, make: Callable[[], Sequence[Effect]], *, paced: bool = False
    ) -> None:
        """Send what no record in hand waits for; until it is acked, commits say so."""
        try:
            effects = make()
        except Exception as error:
            effects = [rollout.give_up(error)]
        if paced:
            effects = self.hands.pacing.now(effects, rollout)
        self.hands.outbox.carry_out(effects, rollout.partition, self.loose)

    def cancel(self, ids: set[str], groups: set[str]) -> None:
        """Cancel the rollouts that were named; groups are looked for once, however many."""
        live = self.journal.open
        named = {rollout_id: live[rollout_id] for rollout_id in ids & live.keys()}
        if groups:
            named |= {i: r for i, r in live.items() if r.request.group_id in groups}
        for rollout in named.values():
            self.cancel_if_asked(rollout)

    def cancel_if_asked(self, rollout: Rollout) -> None:
        reason = self.hands.control.cancels(rollout.request)
        if reason is not None:
            self.hands.outbox.write(rollout.cancelled(reason), rollout.partition)

    def end_overdue(self) -> None:
        """Write what has to be written because a deadline has passed."""
        if not self.caught_up:
            return
        now_ms = int(self.clock() * 1000)
        for rollout in self.journal.open.values():
            if rollout.admitted:
                for event in _overdue(rollout, now_ms):
                    self.hands.outbox.write(event, rollout.partition)

    def let_go(self) -> None:
        """It belongs to another worker now."""
        if self.written is not None:
            self.written.close()
        for rollout in self.journal.open.values():
            self._leave(rollout)
            rollout.attempt.close_program()

    def live(self) -> int:
        """Rollouts that run, also those whose start is on its way; not what a quota holds back."""
        held = self.hands.quotas.held[self.journal.partition]
        return len(self.journal.open) + len(self.starting) - held

    def looks_back(self) -> bool:
        """Whether what a reset has to know first is still read back."""
        return self.written is not None and not self.written.known

    def commit_metadata(self, requests_id: str) -> str:
        """The watermark; what was found at the assignment while not all of it is folded again."""
        if not self.folded:
            self._forget()
            return self.word
        watermark = self.journal.watermark(self.progress.next_offset)
        return replace(watermark, requests=requests_id, quota=self._held_back()).write()

    def _forget(self) -> None:
        """Let go of what no commit to come needs, while history is only folded again."""
        below = min(self.read, self.progress.next_offset)
        if below >= self.journal.bulk_low:
            self.journal.watermark(below)

    def _held_back(self) -> bool:
        """Whether an heir must think of commands that may never have been sent.

        And of first commands that were sent late: when, the journal does not tell.
        """
        unacked = self.loose.sent != self.loose.acked
        inherited = self.may_hold_back and not self.caught_up
        held = self.delayed or self.hands.pacing.held[self.journal.partition]
        return bool(held or unacked or inherited)

    def _skipped(self, body: RolloutStarted | RolloutRefused) -> str:
        return (
            f"requests of partition {self.journal.partition} were read from offset "
            f"{body.from_offset}, but the last one started is {self.journal.last}: somebody reset "
            "the group, or retention took requests that nobody had started. To go on without them "
            "restart with --accept-truncation"
        )


def _overdue(rollout: Rollout, now_ms: int) -> list[Event]:
    try:
        return rollout.overdue(now_ms)
    except Exception as error:
        return [rollout.give_up(error)]
