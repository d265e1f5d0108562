"""One journal partition owned by this worker: its fold, its outputs, and its deadlines.

A takeover passes these phases in order; one may be left out, none comes back:

    Replaying    Records below the commit: their outputs were sent before, and are not sent again.
    CatchingUp   Records up to the end at assignment: a command may be answered by a later one, so
                 commands are kept until that end.
    Live         Records behind it: outputs are sent as they arise.

Without a usable commit the phase is Refolding until the end at assignment: the whole journal is
folded, only missing trajectories are written, and at the end all outstanding commands are sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeGuard

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


class KeptCommands(NamedTuple):
    """Commands that an event caused, which a later event may have answered."""

    record: Record
    """The event; it counts as unfinished until they are sent."""
    rollout: Rollout
    command_ids: set[bytes]


@dataclass(frozen=True, slots=True)
class Replaying:
    """Folds the records below the commit again; begins at its low watermark."""

    metadata: str
    """The metadata of the commit: committed again, as the fold does not know enough to replace
    it."""


@dataclass(frozen=True, slots=True)
class Refolding:
    """Folds the whole journal, as no usable commit tells what was sent."""

    written: WrittenTrajectories | None
    """The trajectories that are written already; None if the journal is empty."""


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Folds the records between the commit and the end at assignment."""

    kept: list[KeptCommands] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Live:
    """Folds records as they are written."""


Phase = Replaying | Refolding | CatchingUp | Live


@dataclass(slots=True)
class OwnedJournal:
    """One journal partition owned by this worker."""

    context: JournalContext
    journal: Journal
    progress: PartitionProgress
    clock: LogClock
    """The clock for the deadlines of its rollouts."""
    late: DelayedCommands
    sent_below: int
    """The outputs of records below this offset were sent by an earlier owner; after a reset the end
    of the journal, as nothing may be sent before all of it is folded."""
    phase: Phase
    folded_to: int = 0
    """The offset behind the last folded record."""
    starting: set[int] = field(default_factory=set)
    """Offsets of requests whose starts this worker wrote and has not read back."""

    @property
    def caught_up(self) -> bool:
        """True once all records that were there at assignment are folded."""
        return isinstance(self.phase, Live)

    @property
    def written(self) -> WrittenTrajectories | None:
        """The trajectories written before, while the whole journal is folded again."""
        return self.phase.written if isinstance(self.phase, Refolding) else None

    def apply_record(self, event: Event, record: Record, *, poison: str = "") -> None:
        """Fold one entry and carry out its effects; raises RequestsSkipped.

        `poison` says why the entry must not be given to a program any more.
        """
        offset = record.offset
        silent = offset < self.sent_below
        if not silent and isinstance(self.phase, Replaying):
            self.phase = CatchingUp()
        self.folded_to = offset + 1
        self.context.poison_guard.reason = poison
        applied = self.journal.apply_event(event, offset, record.timestamp_ms, silent=silent)
        if isinstance(event.body, START):
            self._note_start(event.body, offset, applied)
            if self._held_by_quota(applied, silent=silent):
                applied.outputs = ()
        elif self.caught_up and applied.rollout is not None and not applied.rollout.admitted:
            self._count_begun(applied.rollout, applied)
        if applied.outputs:
            self._carry_out(applied, record, silent=silent)
        if not self.caught_up and self.folded_to >= self.progress.end_at_assign:
            self.catch_up()
        elif self.folded_to >= self.sent_below and isinstance(self.phase, Replaying):
            self.phase = CatchingUp()

    def _note_start(
        self, body: RolloutStarted | RolloutRefused, offset: int, applied: AppliedEvent
    ) -> None:
        ours = (
            offset >= self.progress.end_at_assign  # else by an earlier worker of this name
            and body.request_offset in self.starting
        )
        self.starting.discard(body.request_offset)
        if ours and applied.reason == START_AFTER_GAP:
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

    def _count_begun(self, rollout: Rollout, applied: AppliedEvent) -> None:
        """Count a rollout that is queued here but was let begin by the previous
        owner: it has an answer."""
        if applied.ended is None:
            self.late.count_running(rollout)
            self.late.send_rest(rollout, applied.commands)

    def _carry_out(self, applied: AppliedEvent, record: Record, *, silent: bool) -> None:
        """Carry out the effects of an event; those below the commit were carried out before."""
        rollout = applied.rollout
        if applied.ended is not None and rollout is not None:
            if not silent:
                self._retire_cancels(rollout)
            self.late.leave(rollout)
        outputs = self._due_outputs(applied.outputs, rollout, record, silent=silent)
        outputs = self.context.pacing.now(outputs, rollout)
        self.context.outbox.carry_out(outputs, record.partition, record)

    def _due_outputs(
        self, outputs: Sequence[Output], rollout: Rollout | None, record: Record, *, silent: bool
    ) -> Sequence[Output]:
        """Return the outputs that are sent now; in this phase others were sent, or are later."""
        if silent:
            return [output for output in outputs if self._lacks(output)]
        phase = self.phase
        if rollout is None or isinstance(phase, Live):
            return outputs
        awaiting = {e.command_id for e in outputs if _has_answer(e)}
        # After a reset all outstanding commands are sent at the end, which this record has reached.
        if awaiting and isinstance(phase, CatchingUp):
            add_pending_output(record)
            phase.kept.append(KeptCommands(record, rollout, awaiting))
        return [e for e in outputs if not _has_answer(e)]

    def _retire_cancels(self, rollout: Rollout) -> None:
        """Delete the `control` records that cancelled a rollout which has ended."""
        for key in self.context.control.keys_of(rollout.request.rollout_id):
            self.context.outbox.retire_control_record(key)

    def _send_unanswered(self, kept: Iterable[KeptCommands]) -> None:
        """Send the kept commands that are still outstanding, each once."""
        sent: set[bytes] = set()
        for record, rollout, command_ids in kept:
            if self.journal.open.get(rollout.request.rollout_id) is rollout:
                self.late.send_unanswered(rollout, command_ids - sent, record)
            sent |= command_ids
            settle_pending_output(record)

    def _lacks(self, output: Output) -> bool:
        """Return True if an effect of a record folded again still has to be carried out."""
        written = self.written
        return isinstance(output, Trajectory) and written is not None and output not in written

    def catch_up(self) -> None:
        """Act on all that is open, as the journal is read to the end that it had at assignment."""
        if self.caught_up:
            return
        before, self.phase = self.phase, Live()
        reset = isinstance(before, Refolding)
        rollouts = list(self.journal.open.values())
        self.late.inherit(rollouts)
        for rollout in rollouts:
            self.cancel_if_asked(rollout)
            if self._has_begun(rollout, reset=reset):
                self.late.count_running(rollout)
                self.late.go_on(rollout, reset=reset)
        # Running rollouts are counted first, so that this partition's share admits no more than its
        # quota.
        self.context.quotas.shares.held.add(self.journal.partition)
        for rollout in rollouts:
            if not rollout.admitted:
                self._begin_rollout(rollout)
        if isinstance(before, CatchingUp):
            self._send_unanswered(before.kept)
        self.context.quotas.changed()
        log.info("journal_folded", partition=self.journal.partition, open=len(rollouts))

    def _has_begun(self, rollout: Rollout, *, reset: bool) -> bool:
        """Return True if a rollout has begun, according to the journal and the commit."""
        if rollout.admitted or not rollout.at_first_command():
            return True
        unsure = reset or self.late.inherited or rollout.first_offset >= self.sent_below
        return not unsure

    def _begin_rollout(self, rollout: Rollout) -> None:
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

    def release(self) -> None:
        """Release a journal that belongs to another worker now."""
        if self.written is not None:
            self.written.close()
        for rollout in self.journal.open.values():
            self.late.leave(rollout)
            rollout.attempt.close_program()

    def count_running(self) -> int:
        """Return the number of running rollouts, with those being started,
        without those that quotas hold."""
        number = self.journal.partition
        held = self.context.quotas.held[number] + self.context.pacing.held[number]
        return len(self.journal.open) + len(self.starting) - held

    def unread_trajectories(self) -> WrittenTrajectories | None:
        """Return the written trajectories while a reset still has to read them back."""
        written = self.written
        return None if written is None or written.known else written

    def commit_metadata(self, requests_id: str) -> str:
        """Return the watermark; the metadata found at assignment while the
        fold is not complete again."""
        if isinstance(self.phase, Replaying):
            self._forget()
            return self.phase.metadata
        if self.written is not None:
            self._forget()
            return ""
        watermark = self.journal.watermark(self.progress.next_offset)
        unsure = self.late.inherited and not self.caught_up
        held_back = unsure or self.late.held_back()
        requests = watermark.requests or requests_id
        return replace(watermark, requests=requests, quota=held_back).write()

    def _forget(self) -> None:
        """Drop state that no later commit needs, while history is only folded again."""
        below = min(self.folded_to, self.progress.next_offset)
        if below >= self.journal.bulk_low:
            self.journal.watermark(below)

    def _skipped(self, body: RolloutStarted | RolloutRefused) -> str:
        return (
            f"requests of partition {self.journal.partition} were read from offset "
            f"{body.from_offset}, but the last one started is {self.journal.last}: the group's "
            "commit was reset, or retention deleted requests before they were started. To continue "
            "without them, restart with --accept-truncation"
        )


def _has_answer(output: Output) -> TypeGuard[Command]:
    return isinstance(output, Command) and output.kind not in COURTESY


def _overdue(rollout: Rollout, now_ms: int) -> list[Event]:
    try:
        return rollout.overdue(now_ms)
    except Exception as error:
        return [rollout.give_up(error)]
