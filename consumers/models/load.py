"""Whether a server is full, and the calls that it turns away for that.

Full is where a call that comes now would not begin in time: so many wait before it, so many are
answered in a second, and then it is too late. Such a call is answered `busy`, which costs it no
try, instead of `expired` later, which costs one. Its rollout asks again at once, here or wherever
its partition is by then, so the answer is held back for a while: longer each time, and more or less
by chance of its id. That bounds what a full server adds to the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from consumers.clock import Clock
from consumers.log.protocols import Record
from schemas.ids import command_key
from schemas.messages import CallFailed, ModelCall

BUSY = "busy"
FIRST_HOLD_S, LONGEST_HOLD_S = 0.25, 8.0
LEAST_S, LEAST_ANSWERS = 1.0, 4
"""Seen under load before anything is said of the speed."""
WINDOW_S = 30.0
"""What was seen so long ago counts half."""


@dataclass(slots=True)
class Speed:
    """Answers in a second, as long as more calls are in hand than the engine takes at once."""

    wall: Clock
    capacity: int
    _since: float | None = None
    _answers: float = 0.0

    def look(self, in_hand: int) -> None:
        """To be told of how many calls are in hand, whenever that may have changed."""
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
        """None where the engine is not full, or too little was seen of it."""
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
    """What a server knows of its load."""

    wall: Clock
    capacity: int
    """Calls that its engine takes at once."""
    speed: Speed = field(init=False)
    _held: dict[tuple[bytes, bytes, int], _Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.speed = Speed(self.wall, self.capacity)

    def __len__(self) -> int:
        return len(self._held)

    def of(self, partition: int) -> int:
        """How many records of a partition are held."""
        records = (record for held in self._held.values() for record in held.records)
        return sum(record.partition == partition for record in records)

    def refusal(self, call: ModelCall, now_ms: int, in_hand: int) -> CallFailed | None:
        """The answer to a call that would not begin in time; None where it would, or may."""
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
        return CallFailed(BUSY, msg, True)

    def hold(self, call: ModelCall, body: CallFailed, records: list[Record], now_ms: int) -> None:
        """Keep a refusal until its time has come."""
        due = self.wall() + hold_s(call, now_ms)
        self._held[command_key(call)] = _Held(due, call, body, list(records))

    def join(self, call: ModelCall, record: Record) -> bool:
        """Whether a call is held already; its record is answered along with the others."""
        held = self._held.get(command_key(call))
        if held is not None:
            held.records.append(record)
        return held is not None

    def due(self) -> Iterator[tuple[ModelCall, CallFailed, Record]]:
        """The refusals whose time has come."""
        now = self.wall()
        for held in [each for each in self._held.values() if each.due <= now]:
            del self._held[command_key(held.call)]
            for record in held.records:
                yield held.call, held.body, record

    def abort(self, gone: Callable[[ModelCall], bool]) -> None:
        """Forget calls that nobody waits for; their records are closed without an answer."""
        for held in [each for each in self._held.values() if gone(each.call)]:
            del self._held[command_key(held.call)]
            for record in held.records:
                record.closed = True


def hold_s(call: ModelCall, now_ms: int) -> float:
    """How long a refusal is held back: twice as long each time, within bounds; the same for the
    same call, and another one for another. Not past the time in which the call might have begun:
    soon after, its rollout would count it as failed."""
    longest: float = min(LONGEST_HOLD_S, FIRST_HOLD_S * 2.0 ** min(call.tries, 10))
    left_s = max(FIRST_HOLD_S / 2, (call.not_after_ms - now_ms) / 1000)
    return min(left_s, longest * (0.5 + sum(call.command_id[:1]) / 510))
