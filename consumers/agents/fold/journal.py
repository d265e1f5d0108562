"""The fold of one journal partition: its open rollouts and its chain of starts."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from rollcall.consumers.agents.fold.chain import StartChain
from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.rollout import Output, Rollout
from rollcall.consumers.agents.fold.trajectory import END, refused_trajectory
from rollcall.consumers.agents.watermark import MOST_STRAGGLERS, Watermark
from rollcall.schemas.messages import (
    EnvironmentStep,
    Event,
    ModelCall,
    RolloutFinished,
    RolloutRefused,
    RolloutStarted,
    Trajectory,
)

START = (RolloutStarted, RolloutRefused)
# As a tuple: `isinstance` with A | B makes the union anew each time.
COMMANDS = (ModelCall, EnvironmentStep)
FEW_RECORDS = 20_000
"""The number of records that are folded in about a second; below it no stragglers are named."""


@dataclass(slots=True)  # not frozen: one is made for every event
class AppliedEvent:
    """The result of one event."""

    reason: str = ""
    """The reason why it does not count, a key of `Journal.ignored`; empty if it counts."""
    outputs: Sequence[Output] = ()
    """Its outputs, in the order in which they are to be sent."""
    rollout: Rollout | None = None
    """The rollout that it began, changed or ended."""
    ended: Trajectory | None = None
    """The trajectory, if it ended a rollout; also one of the effects."""

    @property
    def counted(self) -> bool:
        return not self.reason

    @property
    def commands(self) -> list[Command]:
        return [output for output in self.outputs if isinstance(output, COMMANDS)]


class Journal:
    """The fold of one partition of rollout.events: its open rollouts and its chain of starts."""

    def __init__(
        self,
        partition: int,
        world: FoldContext,
        writer: str,
        begin: Watermark | None = None,
        *,
        few: int = FEW_RECORDS,
    ) -> None:
        self.few = few
        self.partition = partition
        self.world = world
        self.writer = writer
        begin = begin or Watermark(0)
        self.chain = StartChain(begin.last, begin.epoch, begin.requests, begin.left)
        """The last request whose start counted."""
        self.bulk_low = begin.bulk_low
        """Below this offset only records of stragglers are read, and `stragglers`
        decides which starts count."""
        self.open: dict[str, Rollout] = {}
        self.ignored: Counter[str] = Counter()
        self._stragglers = frozenset(begin.stragglers)
        self._keys: set[bytes | None] = set()
        """The keys of stragglers whose starts were read; only their records count below
        `bulk_low`."""
        self._starts: deque[tuple[int, StartChain]] = deque()
        """Offsets of counted starts, each with the chain before it."""
        self._twice: deque[tuple[int, int]] = deque()
        """First offsets of open rollouts that were started again, with the offset of that start."""
        self._ended: deque[tuple[int, int]] = deque()
        """Offsets of ends, each with the first offset of its rollout, as no commit has passed
        it."""

    @property
    def last(self) -> int | None:
        """The last counted request offset; None if none has been counted."""
        return self.chain.last

    def needs(self, offset: int, key: bytes | None) -> bool:
        """Return True if a record has to be folded. Called in log order;
        decides without decoding."""
        if offset >= self.bulk_low:
            return True
        if offset in self._stragglers:
            self._keys.add(key)
        return key in self._keys

    def apply_event(
        self, event: Event, offset: int, now_ms: int, *, silent: bool = False
    ) -> AppliedEvent:
        """Apply one event, in log order. `now_ms` is its append time.

        If `silent`, answers yield no commands: for readers that would not send them.
        """
        body = event.body
        if isinstance(body, START):
            return self._start(event, body, offset, now_ms)
        rollout = self.open.get(event.rollout_id)
        if rollout is None:
            return self._ignore("not_open")
        # Decided before the newer attempt was read; a cancel or a deadline ends any attempt.
        if isinstance(body, RolloutFinished) and event.attempt != rollout.attempt.number:
            return self._ignore("older_attempt")
        if isinstance(body, END):
            del self.open[event.rollout_id]
            self._ended.append((offset, rollout.first_offset))
            trajectory, closing = rollout.end(body, offset, now_ms)
            return AppliedEvent("", [trajectory, *closing], rollout, trajectory)
        try:
            outcomes = rollout.apply_event(event, now_ms)
            if outcomes is None:
                return self._ignore("late_or_twice")
            return AppliedEvent("", rollout.outputs(outcomes, silent=silent), rollout)
        except Exception as error:  # of the fold itself: it must not end other rollouts
            return AppliedEvent("", [rollout.give_up(error)], rollout)

    def _ignore(self, reason: str) -> AppliedEvent:
        self.ignored[reason] += 1
        return AppliedEvent(reason)

    def _start(
        self, event: Event, body: RolloutStarted | RolloutRefused, offset: int, now_ms: int
    ) -> AppliedEvent:
        """Open a rollout if its start counts."""
        if reason := self._breaks_chain(body, offset):
            return self._ignore(reason)
        if event.rollout_id in self.open:
            self._twice.append((self.open[event.rollout_id].first_offset, offset))
            return self._ignore("already_open")
        if isinstance(body, RolloutRefused):
            trajectory = refused_trajectory(event, body, self.partition, offset, now_ms)
            return AppliedEvent("", [trajectory], None, trajectory)
        rollout = Rollout(
            body.request,
            partition=self.partition,
            offset=offset,
            started_ms=now_ms,
            requested_ms=body.requested_ms,
            rules=body.rules,
            world=self.world,
            writer=self.writer,
        )
        self.open[event.rollout_id] = rollout
        try:
            return AppliedEvent(
                "", rollout.outputs(rollout.begin_attempt(now_ms), silent=False), rollout
            )
        except Exception as error:
            return AppliedEvent("", [rollout.give_up(error)], rollout)

    def _breaks_chain(self, body: RolloutStarted | RolloutRefused, offset: int) -> str:
        """Return why a start does not count; a start that counts becomes the last of the chain.

        If none was counted before, the first one counts.
        """
        # The chain begins at `bulk_low`; the stragglers tell which earlier starts count.
        if offset < self.bulk_low:
            return "" if offset in self._stragglers else "no_straggler"
        if reason := self.chain.breaks(body):
            return reason
        before, self.chain = self.chain, self.chain.then(body)
        self._starts.append((offset, before))
        return ""

    def _firsts(self, commit: int, most: int) -> list[int]:
        """Return the first offsets below `commit` of the oldest rollouts
        that count as open there."""
        known = {
            *(first for _, first in self._ended),
            *(first for first, _ in self._twice),
            *(rollout.first_offset for rollout in islice(self.open.values(), most)),
        }
        return nsmallest(most, (first for first in known if first < commit))

    def watermark(self, commit: int) -> Watermark:
        """Return where a reader must begin to know all that is open at `commit`; commits only rise.

        A rollout whose end lies at or above the commit counts as open: its end will be read again.
        So does one that was started twice while it was open, until the second start is below the
        watermark: a reader that had not seen the first start would count the second. Stragglers are
        named if that at least halves the records to be read; `bulk_low` never goes back, since
        records below it may be unknown here.
        """
        while self._ended and self._ended[0][0] < commit:
            self._ended.popleft()
        # Look for stragglers only if there would be more than `few` records to read again.
        firsts = self._firsts(commit, 1)
        lows = [*firsts, commit]
        if lows[0] < max(commit - self.few, self.bulk_low):
            firsts = self._firsts(commit, MOST_STRAGGLERS + 1)
            lows = [*firsts, commit][: MOST_STRAGGLERS + 1]
        near = commit - max(self.few, 2 * (commit - lows[-1]))
        named = next(n for n, low in enumerate(lows) if low >= max(near, self.bulk_low))
        self.bulk_low = low = lows[named]
        while self._twice and self._twice[0][1] < low:
            self._twice.popleft()
        while self._starts and self._starts[0][0] < low:
            self._starts.popleft()
        # State the chain as of `low`: a reader folds the later starts again.
        chain = self._starts[0][1] if self._starts else self.chain
        return Watermark(
            low,
            chain.last,
            tuple(firsts[:named]),
            chain.requests,
            epoch=chain.epoch,
            left=chain.left,
        )
