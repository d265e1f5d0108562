"""One journal partition owned by this worker: its fold, its outputs, and its deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from rollcall.consumers.agents.delayed_commands import DelayedCommands, JournalContext
from rollcall.consumers.agents.fold.chain import START_AFTER_GAP
from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.agents.fold.journal import START, AppliedEvent, Journal
from rollcall.consumers.agents.fold.rollout import Output, Rollout
from rollcall.consumers.agents.lookback import WrittenTrajectories
from rollcall.consumers.agents.outbox import COURTESY, add_pending_output, settle_pending_output
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.clock import LogClock
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.schemas.errors import RequestsSkipped
from rollcall.schemas.messages import Event, RolloutRefused, RolloutStarted, Trajectory

log = structlog.get_logger()


@dataclass(slots=True)
class OwnedJournal:
    """One journal partition owned by this worker."""

    context: JournalContext
    journal: Journal
    progress: PartitionProgress
    clock: LogClock
    """The clock for the deadlines of its rollouts."""
    word: str
    """The commit metadata found; kept until the fold is complete as of a commit."""
    reset: bool
    """True if no usable commit was found: fold the whole journal, then resend
    all outstanding commands."""
    silent_until: int
    """The outputs of records below this offset were sent before."""
    late: DelayedCommands
    folded: bool = False
    """True if everything below `silent_until` is folded."""
    caught_up: bool = False
    starting: set[int] = field(default_factory=set)
    """Offsets of requests whose starts this worker wrote and has not read back."""
    read: int = 0
    """The offset behind the last folded record."""
    written: WrittenTrajectories | None = None
    """After a reset, the trajectories that are written already."""
    unsure: list[tuple[Record, Rollout, set[bytes]]] = field(default_factory=list)
    """Records read on the way to the end, with the commands that they caused: the rest of the
    journal tells which of these were answered."""
    poison_records: dict[int, str] = field(default_factory=dict)
    """Offsets of events that must not be given to a program any more, and why."""

    def take(self, event: Event, record: Record) -> None:
        """Fold one entry and carry out its effects; raises RequestsSkipped."""
        offset = record.offset
        silent = offset < self.silent_until
        self.folded = self.folded or not silent
        self.read = offset + 1
        self.context.poison_guard.reason = (
            self.poison_records.pop(offset, "") if self.poison_records else ""
        )
        taken = self.journal.take(event, offset, record.timestamp_ms, silent=silent)
        if isinstance(event.body, START):
            self._started(event.body, offset, taken)
            if self._held_by_quota(taken, silent=silent):
                taken.outputs = ()
        elif self.caught_up and taken.rollout is not None and not taken.rollout.admitted:
            self._had_begun(taken.rollout, taken)
        if taken.outputs:
            self._carry_out(taken, record, silent=silent)
        self.folded = self.folded or offset + 1 >= self.silent_until
        if not self.caught_up and offset + 1 >= self.progress.end_at_assign:
            self.catch_up()

    def _started(
        self, body: RolloutStarted | RolloutRefused, offset: int, taken: AppliedEvent
    ) -> None:
        ours = (
            offset >= self.progress.end_at_assign  # else by an earlier worker of this name
            and body.request_offset in self.starting
        )
        self.starting.discard(body.request_offset)
        if ours and taken.reason == START_AFTER_GAP:
            raise RequestsSkipped(self._skipped(body))

    def _held_by_quota(self, start: AppliedEvent, *, silent: bool) -> bool:
        """Return True if a started rollout's first command has to wait for its user's quota."""
        rollout, quotas = start.rollout, self.context.quotas
        if rollout is None:
            return False
        if not silent:
            self.cancel_if_asked(rollout)
        if self.caught_up:
            return not self.late.admit(rollout)
        if self.late.inherited or quotas.limits(rollout):
            if not silent:
                self.late.defer(rollout)
            return True  # the end of the journal tells if it had begun
        quotas.run(rollout)
        return False

    def _had_begun(self, rollout: Rollout, taken: AppliedEvent) -> None:
        """Count a rollout that is queued here but was let begin by the previous
        owner: it has an answer."""
        if taken.ended is None:
            self.late.count_running(rollout)
            self.late.send_rest(rollout, taken.commands)

    def _carry_out(self, taken: AppliedEvent, record: Record, *, silent: bool) -> None:
        """Carry out the effects of an event; those below the commit were carried out before."""
        rollout = taken.rollout
        if taken.ended is not None and rollout is not None:
            if not silent:
                self._retire_cancels(rollout)
            self.late.leave(rollout)
        outputs = taken.outputs
        if silent:
            outputs = [output for output in outputs if self._lacks(output)]
        elif not self.caught_up and rollout is not None:
            outputs = self._at_once(outputs, rollout, record)
        outputs = self.context.pacing.now(outputs, rollout)
        self.context.outbox.carry_out(outputs, record.partition, record)

    def _retire_cancels(self, rollout: Rollout) -> None:
        """Delete the `control` records that cancelled a rollout which has ended."""
        for key in self.context.control.keys_of(rollout.request.rollout_id):
            self.context.outbox.retire_word(key)

    def _at_once(self, outputs: Sequence[Output], rollout: Rollout, record: Record) -> list[Output]:
        """Keep commands, and the record with them, until the end of the
        journal: they may be answered."""
        kept = {e.command_id for e in outputs if isinstance(e, Command) and e.kind not in COURTESY}
        if kept:
            add_pending_output(record)
            self.unsure.append((record, rollout, kept))
        return [e for e in outputs if not (isinstance(e, Command) and e.command_id in kept)]

    def _send_unanswered(self) -> None:
        """Send the kept commands that are still outstanding, each once."""
        sent: set[bytes] = set()
        for record, rollout, kept in self.unsure:
            if self.journal.open.get(rollout.request.rollout_id) is rollout:
                self.late.send_unanswered(rollout, kept - sent, record)
            sent |= kept
            settle_pending_output(record)
        self.unsure.clear()

    def _lacks(self, output: Output) -> bool:
        """Return True if an effect of a record folded again still has to be carried out."""
        return (
            isinstance(output, Trajectory)
            and self.written is not None
            and (output not in self.written)
        )

    def catch_up(self) -> None:
        """Act on all that is open, as the journal is read to the end that it had at assignment."""
        self.folded = True
        if self.caught_up:
            return
        self.caught_up = True
        self.written = None
        rollouts = list(self.journal.open.values())
        self.late.inherit(rollouts)
        for rollout in rollouts:
            self.cancel_if_asked(rollout)
            if self._began(rollout):
                self.late.count_running(rollout)
                self.late.go_on(rollout, reset=self.reset)
        # Running rollouts are counted first, so that this partition's share admits no more than its
        # quota.
        self.context.quotas.shares.held.add(self.journal.partition)
        for rollout in rollouts:
            if not rollout.admitted:
                self._begin(rollout)
        self._send_unanswered()
        self.context.quotas.changed()
        log.info("journal_folded", partition=self.journal.partition, open=len(rollouts))

    def _began(self, rollout: Rollout) -> bool:
        """Return True if a rollout has begun, according to the journal and the commit."""
        if rollout.admitted or not rollout.at_first_command():
            return True
        unsure = self.reset or self.late.inherited or rollout.first_offset >= self.silent_until
        return not unsure

    def _begin(self, rollout: Rollout) -> None:
        """Send a first command that may never have been sent, or queue it.

        It goes ahead of what waits here already: its first command may be in flight.
        """
        if self.late.admit(rollout, ahead=True):
            self.late.send_again(rollout, fresh=True)
        else:
            self.late.decide(rollout)

    def cancel(self, ids: set[str], groups: set[str]) -> None:
        """Cancel the named rollouts; groups are searched in one pass, however many they are."""
        live = self.journal.open
        named = {rollout_id: live[rollout_id] for rollout_id in ids & live.keys()}
        if groups:
            named |= {i: r for i, r in live.items() if r.request.group_id in groups}
        for rollout in named.values():
            self.cancel_if_asked(rollout)

    def cancel_if_asked(self, rollout: Rollout) -> None:
        reason = self.context.control.cancels(rollout.request)
        if reason is not None:
            self.context.outbox.write(rollout.cancelled(reason), rollout.partition)

    def end_overdue(self) -> None:
        """Write the events of deadlines that have passed."""
        if not self.caught_up:
            return
        now_ms = int(self.clock() * 1000)
        for rollout in self.journal.open.values():
            if rollout.admitted and now_ms >= rollout.attempt.due_ms:
                for event in _overdue(rollout, now_ms):
                    self.context.outbox.write(event, rollout.partition)

    def let_go(self) -> None:
        """Release a journal that belongs to another worker now."""
        if self.written is not None:
            self.written.close()
        for rollout in self.journal.open.values():
            self.late.leave(rollout)
            rollout.attempt.close_program()

    def live(self) -> int:
        """Return the number of running rollouts, with those being started,
        without those that quotas hold."""
        number = self.journal.partition
        held = self.context.quotas.held[number] + self.context.pacing.held[number]
        return len(self.journal.open) + len(self.starting) - held

    def looks_back(self) -> bool:
        """Return True while data that a reset needs first is still read back."""
        return self.written is not None and not self.written.known

    def commit_metadata(self, requests_id: str) -> str:
        """Return the watermark; the word found at assignment while the
        fold is not complete again."""
        if not self.folded:
            self._forget()
            return self.word
        watermark = self.journal.watermark(self.progress.next_offset)
        unsure = self.late.inherited and not self.caught_up
        held_back = unsure or self.late.held_back()
        requests = watermark.requests or requests_id
        return replace(watermark, requests=requests, quota=held_back).write()

    def _forget(self) -> None:
        """Drop state that no later commit needs, while history is only folded again."""
        below = min(self.read, self.progress.next_offset)
        if below >= self.journal.bulk_low:
            self.journal.watermark(below)

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
