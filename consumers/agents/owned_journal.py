"""One journal partition in this worker's hands: folded, carried out, and held against the clock."""

from collections import Counter
from dataclasses import dataclass, field, replace

import structlog

from consumers.agents.control_state import ControlState
from consumers.agents.fold.journal import START, START_AFTER_GAP, Journal, Taken
from consumers.agents.fold.rollout import Effect, Rollout
from consumers.agents.lookback import Written
from consumers.agents.outbox import Outbox
from consumers.agents.quota import Quota
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
    quota: Quota
    control: ControlState
    bar: Bar
    counts: Counter[str]


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
        rollout = start.rollout
        if rollout is None:
            return False
        if not silent:
            self.cancel_if_asked(rollout)
        if self.hands.quota.admit(rollout):
            return False
        self.hands.counts["held_by_quota"] += 1
        return True

    def _carry_out(self, taken: Taken, record: Record, *, silent: bool) -> None:
        """Carry out what a read event gives rise to; below the commit that was done before."""
        if taken.ended is not None and taken.rollout is not None:
            self.hands.quota.leave(taken.rollout)
        effects = taken.effects
        if silent:
            effects = [effect for effect in effects if self._lacks(effect)]
        self.hands.outbox.carry_out(effects, record.partition, record)

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
        for rollout in list(self.journal.open.values()):
            self.cancel_if_asked(rollout)
            held_before = self.may_hold_back and rollout.at_first_command()
            if self.may_hold_back and rollout.heard_ms:  # it ran by then; since when, nobody knows
                rollout.runs_ms = rollout.heard_ms
            if rollout.admitted and (self.reset or held_before):
                self.send_again(rollout, fresh=held_before)
            elif rollout.decision is not None:
                self.hands.outbox.carry_out([rollout.decision], rollout.partition, None)
        log.info("journal_folded", partition=self.journal.partition, open=len(self.journal.open))

    def send_again(self, rollout: Rollout, *, fresh: bool) -> None:
        """Send what a rollout waits for; `fresh` where it may never have been sent before."""
        if fresh:
            rollout.restart_clock(int(self.clock() * 1000))
        try:
            effects = rollout.resend()
        except Exception as error:
            effects = [rollout.give_up(error)]
        self.hands.outbox.carry_out(effects, rollout.partition, None)

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
            self.hands.quota.leave(rollout)
            rollout.attempt.close_program()

    def live(self) -> int:
        """Rollouts that run, also those whose start is on its way; not what a quota holds back."""
        held = self.hands.quota.held[self.journal.partition]
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
        """Whether an heir must think of first commands that may never have been sent.

        What an earlier owner held back is sent again when the journal is read, but no commit waits
        for those acks: an answer has to come first.
        """
        if self.may_hold_back and self.caught_up and not self.hands.quota.most:
            self.may_hold_back = any(
                rollout.at_first_command() and rollout.first_offset < self.progress.end_at_assign
                for rollout in self.journal.open.values()
            )
        return self.may_hold_back

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
