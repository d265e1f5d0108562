"""One journal partition in this worker's hands: folded, carried out, and held against the clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from consumers.agents.fold.chain import START_AFTER_GAP
from consumers.agents.fold.commands import Command
from consumers.agents.fold.journal import START, Journal, Taken
from consumers.agents.fold.rollout import Effect, Rollout
from consumers.agents.late_commands import Hands, LateCommands
from consumers.agents.lookback import Written
from consumers.agents.outbox import COURTESY, owe, pay
from consumers.clock import LogClock
from consumers.log.protocols import Record
from consumers.loop.partition_progress import PartitionProgress
from schemas.errors import RequestsSkipped
from schemas.messages import Event, RolloutRefused, RolloutStarted, Trajectory

log = structlog.get_logger()


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
    late: LateCommands
    folded: bool = False
    """Whether everything below `silent_until` is known."""
    caught_up: bool = False
    starting: set[int] = field(default_factory=set)
    """Offsets of requests whose starts this worker wrote and has not read back."""
    read: int = 0
    """What lies below has been folded."""
    written: Written | None = None
    """After a reset, the trajectories that are there."""
    unsure: list[tuple[Record, Rollout, set[bytes]]] = field(default_factory=list)
    """Records read on the way to the end, and the commands that they gave rise to: whether these
    were sent, and answered, the rest of the journal tells."""
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
        elif self.caught_up and taken.rollout is not None and not taken.rollout.admitted:
            self._had_begun(taken.rollout, taken)
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
            return not self.late.admit(rollout)
        if self.late.inherited or quotas.limits(rollout):
            if not silent:
                self.late.defer(rollout)
            return True  # where the journal ends it is known whether it had begun
        quotas.run(rollout)
        return False

    def _had_begun(self, rollout: Rollout, taken: Taken) -> None:
        """Whoever had the journal before had let begin what is held here: it is answered."""
        if taken.ended is None:
            self.late.count_running(rollout)
            self.late.send_rest(rollout, taken.commands)

    def _carry_out(self, taken: Taken, record: Record, *, silent: bool) -> None:
        """Carry out what a read event gives rise to; below the commit that was done before."""
        rollout = taken.rollout
        if taken.ended is not None and rollout is not None:
            if not silent:
                self._retire_cancels(rollout)
            if not self.caught_up:
                self.late.note_begun(rollout, record.timestamp_ms)
            self.late.leave(rollout)
        effects = taken.effects
        if silent:
            effects = [effect for effect in effects if self._lacks(effect)]
        elif not self.caught_up and rollout is not None:
            effects = self._at_once(effects, rollout, record)
        effects = self.hands.pacing.now(effects, rollout)
        self.hands.outbox.carry_out(effects, record.partition, record)

    def _retire_cancels(self, rollout: Rollout) -> None:
        """Take back the words that asked for the end of a rollout that has ended."""
        for key in self.hands.control.keys_of(rollout.request.rollout_id):
            self.hands.outbox.retire_word(key)

    def _at_once(self, effects: Sequence[Effect], rollout: Rollout, record: Record) -> list[Effect]:
        """Keep commands back, and the record with them: their answers may be further on."""
        kept = {e.command_id for e in effects if isinstance(e, Command) and e.kind not in COURTESY}
        if kept:
            owe(record)
            self.unsure.append((record, rollout, kept))
        return [e for e in effects if not (isinstance(e, Command) and e.command_id in kept)]

    def _send_unanswered(self) -> None:
        """Send what was kept back and is still waited for, each once."""
        sent: set[bytes] = set()
        for record, rollout, kept in self.unsure:
            if self.journal.open.get(rollout.request.rollout_id) is rollout:
                self.late.send_unanswered(rollout, kept - sent, record)
            sent |= kept
            pay(record)
        self.unsure.clear()

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
        self.late.inherit(rollouts)
        for rollout in rollouts:
            self.cancel_if_asked(rollout)
            if self._began(rollout):
                self.late.count_running(rollout)
                self.late.go_on(rollout, reset=self.reset)
        self.hands.quotas.shares.held.add(self.journal.partition)
        for rollout in rollouts:
            if not rollout.admitted:
                self._begin(rollout)
        self._send_unanswered()
        self.hands.quotas.changed()
        log.info("journal_folded", partition=self.journal.partition, open=len(rollouts))

    def _began(self, rollout: Rollout) -> bool:
        """Whether a rollout has begun, for all that the journal and the commit tell."""
        if rollout.admitted or not rollout.at_first_command():
            return True
        unsure = self.reset or self.late.inherited or rollout.first_offset >= self.silent_until
        return not unsure

    def _begin(self, rollout: Rollout) -> None:
        """Send a first command that may never have been sent, or hold it back.

        It goes ahead of what waits here already: its first command may be under way.
        """
        if self.late.admit(rollout, ahead=True):
            self.late.send_again(rollout, fresh=True)
        else:
            self.late.decide(rollout)

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
            if rollout.admitted and now_ms >= rollout.attempt.due_ms:
                for event in _overdue(rollout, now_ms):
                    self.hands.outbox.write(event, rollout.partition)

    def let_go(self) -> None:
        """It belongs to another worker now."""
        if self.written is not None:
            self.written.close()
        for rollout in self.journal.open.values():
            self.late.leave(rollout)
            rollout.attempt.close_program()

    def live(self) -> int:
        """Rollouts that run, also those whose start is on its way; not what users' limits hold."""
        number = self.journal.partition
        held = self.hands.quotas.held[number] + self.hands.pacing.held[number]
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
        unsure = self.late.inherited and not self.caught_up
        held_back = unsure or self.late.held_back()
        requests = watermark.requests or requests_id
        return replace(watermark, requests=requests, quota=held_back).write()

    def _forget(self) -> None:
        """Let go of what no commit to come needs, while history is only folded again."""
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
