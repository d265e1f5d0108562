"""Commands of one journal that are sent later than the entry that caused them.

They were delayed by a quota or a rate, or the previous owner of the journal may never have sent
them. No record in flight waits for their acks, so until these arrive the commit's metadata says
that the next owner must consider them. It also says so while a rollout is open whose first command
was late: the journal does not tell when it was sent, and the next owner counts its time from its
first answer.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from rollcall.consumers.agents.control_state import ControlState
from rollcall.consumers.agents.effects import CallModel
from rollcall.consumers.agents.fold.commands import Command, command_identity
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Output, Rollout
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.quotas.call_pacing import CallPacing
from rollcall.consumers.agents.quotas.user_quotas import RolloutQuotas
from rollcall.consumers.loop.clock import LogClock
from rollcall.consumers.loop.time_guard import PoisonGuard
from rollcall.producers.publisher import Cause


@dataclass(frozen=True, slots=True)
class JournalContext:
    """The objects that all journals of one worker share."""

    outbox: Outbox
    quotas: RolloutQuotas
    pacing: CallPacing
    control: ControlState
    poison_guard: PoisonGuard
    counts: Counter[str]


@dataclass(slots=True)
class DelayedCommands:
    """The delayed commands of one journal, and how they are sent."""

    context: JournalContext
    partition: int
    clock: LogClock
    inherited: bool
    """True if the previous owner may have delayed commands."""
    sent: int = 0
    acked: int = 0
    _delayed: set[int] = field(default_factory=set)
    """First offsets of open rollouts whose first command was late, perhaps long ago."""

    def held_back(self) -> bool:
        """Return True if the next owner must consider commands that were
        late or perhaps never sent."""
        return bool(
            self._delayed or self.sent != self.acked or self.context.pacing.held[self.partition]
        )

    def inherit(self, rollouts: Sequence[Rollout]) -> None:
        """Note the rollouts that are open when the journal is taken over."""
        if self.inherited:
            self._delayed.update(rollout.first_offset for rollout in rollouts)

    # Quotas

    def admit(self, rollout: Rollout, *, ahead: bool = False) -> bool:
        """Return True if a rollout may begin; otherwise queue it, first if it goes `ahead`."""
        if self.context.quotas.admit(rollout, ahead=ahead):
            return True
        self._delayed.add(rollout.first_offset)
        self.context.counts["held_by_quota"] += 1
        return False

    def defer(self, rollout: Rollout) -> None:
        """Decide at the end of the journal if it may begin; commits may pass its start before."""
        self._delayed.add(rollout.first_offset)

    def leave(self, rollout: Rollout) -> None:
        """Forget a rollout that has ended or belongs to another worker now."""
        self.context.quotas.leave(rollout)
        self.context.pacing.leave(rollout)
        self._delayed.discard(rollout.first_offset)

    def count_running(self, rollout: Rollout) -> None:
        """Count a rollout as running that an earlier owner let begin."""
        if not rollout.admitted:
            self.context.quotas.leave(rollout)
            self.context.quotas.run(rollout)
        if self.inherited and rollout.heard_ms:  # running by then; its start is unknown
            rollout.runs_ms = rollout.heard_ms

    def _now_ms(self) -> int:
        return int(self.clock() * 1000)

    # Sending

    def go_on(self, rollout: Rollout, *, reset: bool) -> None:
        """Send the commands that a running rollout may lack; after a reset
        all that are outstanding."""
        if reset:
            self.send_again(rollout, fresh=False)
            return
        if rollout.first_offset in self._delayed:
            self._ask_again(rollout)
        self.decide(rollout)

    def decide(self, rollout: Rollout) -> None:
        """Write the decision about a rollout that has not been read back yet."""
        if rollout.decision is not None:
            self.context.outbox.carry_out([rollout.decision], self.partition, None)

    def send_again(self, rollout: Rollout, *, fresh: bool) -> None:
        """Send the outstanding commands of a rollout; `fresh` if they may
        never have been sent before."""
        if fresh:
            rollout.restart_clock(self._now_ms())
        self._send(rollout, lambda: self.context.pacing.now(rollout.resend(), rollout))

    def send_rest(self, rollout: Rollout, sent: Iterable[Command]) -> None:
        """Send what else a rollout may lack that, as an answer now shows, had begun elsewhere."""
        self._ask_again(rollout, {command.position for command in sent})

    def _ask_again(self, rollout: Rollout, but: Container[int] = ()) -> None:
        """Send again the commands that may have waited: rated calls, and
        the rest of a first turn."""
        paced = self.context.quotas.table.may_have_been_paced(rollout.request.user)
        unsure = [
            waits
            for waits in rollout.attempt.outstanding.values()
            if waits.position not in but
            and ((paced and isinstance(waits.effect, CallModel)) or _is_first(waits, rollout))
        ]
        for waits in unsure:
            waits.opened_ms = self._now_ms()
        outputs = rollout.outputs(unsure, silent=False)
        self._send(rollout, lambda: self.context.pacing.now(outputs, rollout))

    def send_paced(self, rollout: Rollout, call: OutstandingEffect) -> None:
        """Send a call whose turn has come; its clock starts now."""
        call.opened_ms = self._now_ms()
        rollout.attempt.due_ms = min(rollout.attempt.due_ms, call.deadline_ms())
        self._send(rollout, lambda: rollout.outputs([call], silent=False))

    def send_unanswered(self, rollout: Rollout, ids: Container[bytes], cause: Cause) -> None:
        """Send those of these commands that are outstanding, as outputs of a record in flight."""
        attempt = rollout.attempt
        waiting = attempt.outstanding.values()
        unanswered = [waits for waits in waiting if command_identity(attempt, waits)[4] in ids]

        def make() -> Sequence[Output]:
            return self.context.pacing.now(rollout.outputs(unanswered, silent=False), rollout)

        self._send(rollout, make, cause)

    def _send(
        self, rollout: Rollout, make: Callable[[], Sequence[Output]], cause: Cause | None = None
    ) -> None:
        try:
            outputs = make()
        except Exception as error:
            outputs = [rollout.give_up(error)]
        self.context.outbox.carry_out(outputs, self.partition, cause or self)


def _is_first(waits: OutstandingEffect, rollout: Rollout) -> bool:
    """Return True if an effect is of the rollout's first turn and has not been retried."""
    return not waits.tries and waits.opened_ms == rollout.started_ms
