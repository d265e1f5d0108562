"""Detection of overload of a server, and the calls that it refuses for it.

A server is full if a new call would not begin in time, by the count of waiting calls and of answers
per second. Such a call is answered `busy`, which does not count as a try, instead of `expired`
later, which does. Its rollout asks again at once, here or at the partition's next owner, so the
answer is delayed: longer each time, with jitter from the command id. That bounds the records
that a full server adds to the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.clock import Clock
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import command_key
from rollcall.schemas.messages import CallFailed, ModelCall

FIRST_HOLD_S, LONGEST_HOLD_S = 0.25, 8.0
LEAST_S, LEAST_ANSWERS = 1.0, 4
"""Time and answers under load that are needed before a rate is known."""
WINDOW_S = 30.0
"""Observations older than this count half."""


@dataclass(slots=True)
class ServiceRate:
    """Answers per second, while more calls are in hand than the engine takes at once."""

    wall: Clock
    capacity: int
    _since: float | None = None
    _answers: float = 0.0

    def look(self, in_hand: int) -> None:
        """Note the number of calls in hand, whenever it may have changed."""
        if in_hand <= self.capacity:
            self._since = None
            return
        now = self.wall()
        if self._since is None:
            self._since, self._answers = now, 0.0
        elif (spent_s := now - self._since) > 2 * WINDOW_S:
            self._since, self._answers = now - spent_s / 2, self._answers / 2

    def note_answer(self) -> None:
        self._answers += 1

    def rate(self) -> float | None:
        """Return answers per second; None if the engine is not full, or was observed too little."""
        if self._since is None or self._answers < LEAST_ANSWERS:
            return None
        spent_s = self.wall() - self._since
        return self._answers / spent_s if spent_s >= LEAST_S else None


@dataclass(slots=True)
class _Held:
    due: float
    call: ModelCall
    body: CallFailed
    records: list[Record]


@dataclass
class Load:
    """The load of a server, and its delayed refusals."""

    wall: Clock
    capacity: int
    """The number of calls that its engine takes at once."""
    speed: ServiceRate = field(init=False)
    _held: dict[tuple[bytes, bytes, int], _Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.speed = ServiceRate(self.wall, self.capacity)

    def __len__(self) -> int:
        return len(self._held)

    def of(self, partition: int) -> int:
        """Count the held records of a partition."""
        records = (record for held in self._held.values() for record in held.records)
        return sum(record.partition == partition for record in records)

    def refusal(self, call: ModelCall, now_ms: int, in_hand: int) -> CallFailed | None:
        """Return the refusal of a call that would not begin in time, else None."""
        self.speed.look(in_hand)
        rate = self.speed.rate()
        if rate is None:
            return None
        wait_s, left_s = (in_hand + 1 - self.capacity) / rate, (call.not_after_ms - now_ms) / 1000
        if wait_s <= left_s:
            return None
        msg = (
            f"{in_hand} calls are in hand, {rate:.3g} are answered in a second, so this one would "
            f"begin in {wait_s:.1f} s; it had {left_s:.1f} s left"
        )
        return CallFailed(FailureCode.BUSY, msg, True)

    def hold(self, call: ModelCall, body: CallFailed, records: list[Record], now_ms: int) -> None:
        """Keep a refusal until it is due."""
        due = self.wall() + hold_s(call, now_ms)
        self._held[command_key(call)] = _Held(due, call, body, list(records))

    def join(self, call: ModelCall, record: Record) -> bool:
        """Return True if the call is held already; its record is answered with the others."""
        held = self._held.get(command_key(call))
        if held is not None:
            held.records.append(record)
        return held is not None

    def due(self) -> Iterator[tuple[ModelCall, CallFailed, Record]]:
        """Remove and yield the refusals that are due."""
        now = self.wall()
        for held in [each for each in self._held.values() if each.due <= now]:
            del self._held[command_key(held.call)]
            for record in held.records:
                yield held.call, held.body, record

    def abort(self, gone: Callable[[ModelCall], bool]) -> None:
        """Drop aborted calls; their records are closed without an answer."""
        for held in [each for each in self._held.values() if gone(each.call)]:
            del self._held[command_key(held.call)]
            for record in held.records:
                record.closed = True


def hold_s(call: ModelCall, now_ms: int) -> float:
    """Return the delay of a refusal: doubled each time, within bounds, with a jitter that is fixed
    by the command id. It ends before the time in which the call might have begun: soon after, its
    rollout would count it as failed."""
    longest: float = min(LONGEST_HOLD_S, FIRST_HOLD_S * 2.0 ** min(call.tries, 10))
    left_s = max(FIRST_HOLD_S / 2, (call.not_after_ms - now_ms) / 1000)
    return min(left_s, longest * (0.5 + sum(call.command_id[:1]) / 510))
