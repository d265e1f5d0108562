"""One partition of the journal, interpreted in two ways.

The fold runs the programs again; the law of counting needs no programs.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.agents.fold.journal import AppliedEvent, Journal
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.agents.watermark import Watermark, read_watermark
from rollcall.consumers.audit.columns import pack_place, word_of
from rollcall.consumers.audit.ends import OPTIONAL
from rollcall.consumers.audit.implied import IMPLIED, NEVER_SENT, GivenUp, word_of_id
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.audit.rollout_facts import REFUSED, RolloutFacts
from rollcall.consumers.audit.window import AuditWindow
from rollcall.consumers.history.reading.counting import JOINED, STARTS, Counting, CountingRule
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
    RolloutFinished,
    RolloutRefused,
    RolloutStarted,
)
from rollcall.schemas.topics import Topics

ANSWERS = (ModelAnswered, EnvironmentStepped)
PLACED = (ModelAnswered, EnvironmentStepped, CallFailed)
FORGET_EVERY = 1000
MINUTE_MS = 60_000
NEVER_MS = 1 << 60
FAR_MINUTES = 15
"""An owner that has been at work for this long has ended rollouts that were over before."""
MISMATCH = (
    "the law of counting {} answer {} of attempt {} of rollout {}, the fold of its program {}; "
    "the rollout went on and ended all the same"
)


@dataclass(slots=True)
class OpenRollout:
    """The state of an open rollout that the audit needs besides fold and law."""

    run_again: bool
    counting: Counting
    implied: dict[bytes, int] = field(default_factory=dict)
    """Command ids that the journal implies, with their states."""
    dispute: Breach | None = None
    """The first disagreement of law and fold; a new attempt settles it."""
    limited: str = ""
    """Its user, if that user has a quota."""
    heard_ms: int = 0
    """Time of the first counted answer, for a user with a quota."""


class CommittedLow:
    """The low watermark of the agents' commit, and the last start below it."""

    def __init__(self, window: AuditWindow, topics: Topics, partition: int) -> None:
        self.watermark = _committed_watermark(window, topics, partition)
        """None if the window does not reach the commit, or the commit has no watermark."""
        self.ahead = -1 if self.watermark is None else self.watermark.bulk_low
        """The offset that is still to be reached; below 0 once it is."""
        self.last: int | None = None
        """The last request that was started below it."""

    def reach(self, last: int | None) -> None:
        """Note the last start, once all below the watermark is read."""
        if self.ahead >= 0:
            self.ahead, self.last = -1, last


def _committed_watermark(window: AuditWindow, topics: Topics, partition: int) -> Watermark | None:
    here = topics.events, partition
    commit = window.commits.get(topics.group("agents"), {}).get(here)
    if commit is None or commit.offset > window.ends.get(here, 0):
        return None
    return read_watermark(commit.metadata)


class PartitionFacts:
    """One journal partition."""

    def __init__(self, facts: RolloutFacts, partition: int) -> None:
        self.facts = facts
        self.partition = partition
        window = facts.window
        first = window.first_request.get(partition)
        last = None if first is None else first - 1
        self.counting_rule = CountingRule(last)
        self.journal = Journal(partition, facts.world, "audit", Watermark(0, last))
        self.open: dict[str, OpenRollout] = {}
        self.requests = array("q")
        """Offsets of the counted requests, rising."""
        self.asked = array("Q")
        """The rollout that the journal starts for each of them."""
        self._requests_id = ""
        self.low = CommittedLow(window, facts.topics, partition)
        self.given_up = GivenUp(facts.implied.excused)
        self._events = 0

    def take(self, event: Event, offset: int, at_ms: int) -> None:
        """Take one event, in log order."""
        self._events += 1
        if self._events % FORGET_EVERY == 0:
            self.journal.watermark(offset)  # lets it forget rollouts that ended before this event
        if 0 <= self.low.ahead <= offset:
            self.low.reach(self.counting_rule.last)
        body = event.body
        if not isinstance(body, PLACED):
            self._note_owner(event.written_by, at_ms)
        if isinstance(body, STARTS):
            self._start(event, body, offset, at_ms)
            return
        if isinstance(body, CallFailed):
            self._note_unsent(event, body)
        life = self.open.get(event.rollout_id)
        if life is None:
            self._stray(event, offset)
            return
        ignored = self.counting_rule.take(event)
        if isinstance(body, ANSWERS):
            self._answer(life, event, offset)
        elif isinstance(body, CallFailed) and self._was_implied(life, event):
            self.facts.implied.failure(life.implied, event, body)
        if life.limited and not life.heard_ms and isinstance(body, PLACED) and not ignored:
            life.heard_ms = at_ms
        if isinstance(body, PLACED) and not life.run_again:
            return
        taken = self.journal.apply_event(event, offset, at_ms)
        # The fold must count exactly the events for which the law has no reason to ignore them.
        counted = taken.counted and not _is_broken(taken)
        if life.run_again and counted == bool(ignored):
            self._differ(life, event, offset, counted=counted)
        if not life.counting.open:
            self._end(life, event, taken, offset, at_ms)
        else:
            if isinstance(body, AttemptStarted) and not ignored:
                life.dispute = None
            if life.run_again:
                self._imply(life, taken.commands, offset, at_ms)

    def _note_owner(self, name: str, at_ms: int) -> None:
        """Note the writer of a decision: it owns the partition, and is at work."""
        self.facts.owners_at_work.add(name)
        self.given_up.decided_by(name)
        self.facts.minutes.add(at_ms // MINUTE_MS)

    def _note_unsent(self, event: Event, body: CallFailed) -> None:
        """Note failures of commands that may rightly never have been sent."""
        if body.code in NEVER_SENT:
            self.facts.implied.excused.add(word_of_id(event.command_id))
        elif body.code == FailureCode.DEADLINE:
            self.given_up.note(event)

    def _differ(self, life: OpenRollout, event: Event, offset: int, *, counted: bool) -> None:
        words = ("ignores", "counts") if counted else ("counts", "does not")
        place_ = f"{event.position}.{event.tries}"
        text = MISMATCH.format(words[0], place_, event.attempt, event.rollout_id, words[1])
        topic = self.facts.topics.events
        life.dispute = life.dispute or Breach("I2", text, topic, self.partition, offset)

    # Starts

    def _start(
        self, event: Event, body: RolloutStarted | RolloutRefused, offset: int, at_ms: int
    ) -> None:
        """Judge a start; the chain of requests decides which one counts."""
        facts = self.facts
        ignored = self.counting_rule.take(event)
        taken = self.journal.apply_event(event, offset, at_ms)
        if taken.counted == bool(ignored):
            text = f"law and fold do not agree whether the start of {event.rollout_id} counts"
            facts.report.add(Breach("I2", text, facts.topics.events, self.partition, offset))
            return
        facts.report.checked["I2"] += 1
        if ignored and ignored != JOINED:
            return
        owner, refused = word_of(event.rollout_id.encode()), isinstance(body, RolloutRefused)
        self._note_request(body, owner)
        if ignored == JOINED:
            return
        facts.report.accepted += 1
        at = REFUSED if refused else body.request_offset % REFUSED  # foreign ones may be negative
        facts.starts.note(owner, pack_place(self.partition, offset), at)
        if isinstance(body, RolloutRefused):
            self._note_end(taken, event.rollout_id, 0, offset, at_ms)
            return
        life = OpenRollout(facts.runnable(body), self.counting_rule.open[event.rollout_id])
        self.open[event.rollout_id] = life
        if facts.quotas.watches(body.request.user):
            life.limited = body.request.user
        if life.run_again:
            self._imply(life, taken.commands, offset, at_ms)
        else:
            facts.not_run.append(owner)

    def _note_request(self, body: RolloutStarted | RolloutRefused, owner: int) -> None:
        """Note a started request; earlier notes from its offset on belong to a log that is gone.

        Offsets in the chain of starts go back only after a truncation, or if the topic is another.
        """
        anew = "" not in (body.requests_id, self._requests_id)
        first = 0 if anew and body.requests_id != self._requests_id else body.request_offset
        self._requests_id = body.requests_id or self._requests_id
        while self.requests and self.requests[-1] >= first:
            self.requests.pop()
            self.asked.pop()
            self.facts.report.cut_off += 1
        self.requests.append(body.request_offset)
        self.asked.append(owner)

    def _stray(self, event: Event, offset: int) -> None:
        """Note an event of a rollout that is not open: it is late, or began before the window."""
        facts = self.facts
        owner = word_of(event.rollout_id.encode())
        facts.strays.setdefault(owner, pack_place(self.partition, offset))
        if isinstance(event.body, PLACED):
            done = isinstance(event.body, ANSWERS)
            facts.implied.stray(event, pack_place(self.partition, offset), done=done)

    # Work

    def _answer(self, life: OpenRollout, event: Event, offset: int) -> None:
        report = self.facts.report
        report.checked["I2"] += 1
        report.checked["I9"] += 1
        if self._was_implied(life, event):
            self.facts.implied.answer(life.implied, event, pack_place(self.partition, offset))

    def _was_implied(self, life: OpenRollout, event: Event) -> bool:
        """Return True if a command was implied; assume so if the program was not run."""
        if not life.run_again:
            life.implied.setdefault(event.command_id, IMPLIED)
        return event.command_id in life.implied

    def _imply(self, life: OpenRollout, commands: list[Command], offset: int, at_ms: int) -> None:
        """Note the commands that an entry of the journal implies."""
        facts = self.facts
        for command in commands:
            if isinstance(command, ModelCall):
                horizon = facts.horizons.calls(command.policy_id)
            else:
                horizon = facts.horizons.steps
            mark = OPTIONAL if at_ms < horizon else 0
            facts.implied.imply(command, pack_place(self.partition, offset, mark))
            life.implied.setdefault(command.command_id, IMPLIED)

    # Ends

    def _end(
        self, life: OpenRollout, event: Event, taken: AppliedEvent, offset: int, at_ms: int
    ) -> None:
        del self.open[event.rollout_id]
        facts, counting = self.facts, life.counting
        if isinstance(event.body, RolloutFinished):
            self._finished(life, event.body, taken.rollout)
        applied = counting.turns + counting.steps
        facts.report.checked["I4"] += applied
        self._note_end(taken, event.rollout_id, applied, offset, at_ms, known=life.run_again)
        if life.limited:
            owner = word_of(event.rollout_id.encode())
            facts.quotas.ended(life.limited, owner, life.heard_ms, at_ms)
        if life.run_again:
            self._imply(life, taken.commands, offset, at_ms)
        facts.implied.ended(life.implied)

    def _finished(self, life: OpenRollout, body: RolloutFinished, rollout: Rollout | None) -> None:
        """Report a pending disagreement of an ended program, and excuse its unsent commands."""
        if life.dispute is not None and body.code != FailureCode.DETERMINISM:
            self.facts.report.add(life.dispute)
        if life.run_again and rollout is not None:
            self._excuse(rollout)

    def _note_end(
        self,
        taken: AppliedEvent,
        rollout_id: str,
        applied: int,
        offset: int,
        at_ms: int,
        *,
        known: bool = True,
    ) -> None:
        """Note the effects of a terminal event; without a run of the program, no trajectory."""
        facts, ended = self.facts, taken.ended
        named = ended.request.scorings if ended and ended.request else ()
        facts.report.ended += 1
        mark = OPTIONAL if at_ms < facts.horizons.trajectories else 0
        owner = word_of(rollout_id.encode())
        at = pack_place(self.partition, offset)
        facts.ends.note(ended if known else None, at, owner, applied, mark, named)

    def close(self) -> None:
        """Note the waits of rollouts that are open at the end."""
        self.low.reach(self.counting_rule.last)
        for rollout_id, life in self.open.items():
            rollout = self.journal.open[rollout_id]
            self.facts.implied.left(life.implied)
            if life.limited:
                owner = word_of(rollout_id.encode())
                self.facts.quotas.ended(life.limited, owner, life.heard_ms)
            held = self.low.watermark is not None and self.low.watermark.quota
            if life.run_again and (held or rollout.at_first_command()):
                self._excuse(rollout)  # a quota may hold its command back, or its calls

    def _excuse(self, rollout: Rollout) -> None:
        """Excuse the commands that a rollout waits for from having been sent."""
        for waits in rollout.attempt.outstanding.values():
            place_ = rollout.attempt.number, waits.position, waits.tries
            named = command_id(rollout.request.rollout_id, *place_)
            self.facts.implied.excused.add(word_of_id(named))

    # Resumption from the commit

    def forgotten(self) -> Iterable[tuple[str, int]]:
        """Yield open rollouts that a reader from the commit would miss, and their start offsets."""
        low = self.low.watermark
        if low is None:
            return
        for rollout_id in self.open:
            first = self.journal.open[rollout_id].first_offset
            if first < low.bulk_low and first not in low.stragglers:
                yield rollout_id, first

    def overdue(self) -> Iterable[tuple[str, int, int]]:
        """Yield open rollouts past their end: id, offset of the start, minutes past the end."""
        minutes = sorted(self.facts.minutes)
        for rollout_id in self.open:
            rollout = self.journal.open[rollout_id]
            after = bisect_right(minutes, self._ends_ms(rollout) // MINUTE_MS)
            if after < len(minutes) and minutes[-1] - minutes[after] >= FAR_MINUTES:
                past = minutes[-1] - self._ends_ms(rollout) // MINUTE_MS
                yield rollout_id, rollout.first_offset, past

    def _ends_ms(self, rollout: Rollout) -> int:
        """Return the latest end of a rollout; a quota stops its clock before its first command."""
        low = self.low.watermark
        if low is not None and not low.quota:
            return rollout.ends_ms()
        if not rollout.heard_ms:
            return NEVER_MS
        return rollout.ends_ms() + rollout.heard_ms - rollout.started_ms


def _is_broken(taken: AppliedEvent) -> bool:
    """Return True if the program of an open rollout deviates from its journal."""
    return taken.ended is None and taken.rollout is not None and taken.rollout.broken
