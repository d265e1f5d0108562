"""The groups that admission drew, one bit per member, from the lowest unfinished draw on."""

from dataclasses import dataclass, field

import numpy as np

from rollcall.schemas.ids import continued_id, draw_of, group_id, request_id, split_continued_id
from rollcall.schemas.messages import Consumed


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The published draws and ended members; held members are left out: they are read again."""

    next_draw: int = 0
    """The next draw: every draw below was published completely, and its records acknowledged."""
    low: int = 0
    """The low watermark: every member of every draw below has ended."""
    ended: bytes = b""
    """One bit per member, from the first member of draw `low`; the lowest bit comes first."""
    left: tuple[int, ...] = ()
    """Draws whose group has left the buffer before all their members had ended."""
    unreadable: int = 0
    """The number of unreadable records that may have been results of running rollouts."""
    asked: tuple[Consumed, ...] = ()
    """Offsets at or above which the requests of draws from `next_draw` on lie."""
    won: tuple[int, ...] = ()
    """Draws of `left` whose group was complete early, so that other members are redundant."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Unfinished draws with fewer members than `group_size`, and their size."""
    begun: tuple[tuple[int, int], ...] = ()
    """Unfinished draws, and the newest version at their publication, where it is known."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """Draw, member and number of continuations, of members that have not ended."""


@dataclass(slots=True)
class Draw:
    """The state of one drawn group; `ended` and `held` are bitmaps of members."""

    ended: int = 0
    held: int = 0
    left: bool = False
    won: bool = False
    """True if its group is complete: members that arrive later are redundant."""
    spare: int = 0
    """The number of ended members of a group that is complete and has not left the buffer."""
    seats: dict[str, int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    """By member, the number of its continuations after a cancellation."""

    def seen(self, member: int) -> bool:
        """Return True if a member has ended or is held."""
        return bool((self.ended | self.held) >> member & 1)


class DrawnGroups:
    """The drawn groups of one run; with a group size of 0 there are none."""

    def __init__(self, run_id: str, group_size: int, book: LedgerState) -> None:
        self.run_id, self.group_size = run_id, group_size
        self.next_draw, self.low = book.next_draw, book.low
        self.ended = book.low * group_size
        """The number of ended members, plus the seats that smaller groups leave empty."""
        self._draws = {draw: Draw(left=True, won=draw in book.won) for draw in book.left}
        self._sizes = dict(book.sizes)
        self._begun = dict(book.begun)
        bits = np.unpackbits(np.frombuffer(book.ended, np.uint8), bitorder="little")
        for place in np.flatnonzero(bits).tolist():
            draw, member = divmod(place, group_size)
            self.mark_ended(book.low + draw, member)
        for draw, member, generation in book.continued:
            self.opened(draw).generations[member] = generation

    def number(self, group: str) -> int:
        """Return the draw number of a group; -1 if it was not drawn."""
        return draw_of(self.run_id, group) if self.group_size else -1

    def at(self, draw: int) -> Draw:
        """Return the state of a draw; the caller must not change it."""
        return self._draws.get(draw) or Draw()

    def opened(self, draw: int) -> Draw:
        """Return the state of a draw from `low` on, to be changed."""
        return self._draws.setdefault(draw, Draw())

    def publish(self, draw: int, size: int | None, version: int | None) -> None:
        """Record that a draw and all below it were published."""
        self.next_draw = max(self.next_draw, draw + 1)
        if version is not None:
            self._begun[draw] = version
        if size is not None and size < self.group_size and draw not in self._sizes:
            self._sizes[draw] = size
            for member in range(size, self.group_size):
                self.mark_ended(draw, member)

    def mark_ended(self, draw: int, member: int) -> None:
        """Mark a member as ended."""
        at = self.opened(draw)
        if at.ended >> member & 1:
            return
        at.ended |= 1 << member
        at.generations.pop(member, None)
        self.ended += 1
        if self._whole(at):
            at.left, at.seats = True, {}
        # A draw whose members have all ended needs no state: below `low` everything has ended.
        while self.low in self._draws and self._whole(self._draws[self.low]):
            del self._draws[self.low]
            self._sizes.pop(self.low, None)
            self._begun.pop(self.low, None)
            self.low += 1

    def has_ended(self, draw: int) -> bool:
        """Return True if all members of a draw have ended."""
        return draw < self.low or (draw in self._draws and self._whole(self._draws[draw]))

    def seat(self, draw: int, rollout_id: str) -> int | None:
        """Return the member number of a rollout in a published draw; None if it has none."""
        if draw >= self.next_draw:
            return None
        at = self.opened(draw)
        if not at.seats:
            at.seats = {request_id(self.run_id, draw, m): m for m in range(self.group_size)}
        return at.seats.get(split_continued_id(rollout_id)[0])

    def size(self, draw: int) -> int:
        """Return the number of members of a draw."""
        return self._sizes.get(draw, self.group_size)

    def with_member(self, rollout_id: str) -> int:
        """Return the unfinished draw that contains a rollout; -1 for none."""
        unfinished = range(self.low, self.next_draw)
        return next((d for d in unfinished if self.seat(d, rollout_id) is not None), -1)

    def name_of(self, draw: int, rollout_id: str) -> str:
        """Return the current id of a drawn rollout, with its continuation."""
        member = self.seat(draw, rollout_id)
        return rollout_id if member is None else self._id(draw, member)

    def unseen(self, draw: int) -> list[str]:
        """Return the ids of members that are neither ended nor held."""
        at = self.at(draw)
        return [self._id(draw, m) for m in range(self.group_size) if not at.seen(m)]

    def losing(self) -> list[int]:
        """Return the draws that have left the buffer and whose unended members are redundant."""
        return [draw for draw, at in self._draws.items() if at.won and at.left]

    def spare(self) -> int:
        """Return occupied seats without a held member, less the redundant ones still running."""
        losing = [self._draws[draw] for draw in self.losing()]
        unended = sum(self.group_size - (at.ended | at.held).bit_count() for at in losing)
        return sum(at.spare for at in self._draws.values()) + self._empty() - unended

    def begun(self) -> dict[str, int]:
        """Return the newest version at the start of each group with running members."""
        waiting = [d for d in self._begun if d >= self.low]
        gone = {d for d in waiting if self.at(d).left or self.at(d).won}
        return {group_id(self.run_id, d): self._begun[d] for d in waiting if d not in gone}

    def book(self) -> LedgerState:
        """Return the state for a checkpoint."""
        open_draws = {draw: at for draw, at in self._draws.items() if draw >= self.low}
        window = max(open_draws, default=self.low - 1) + 1 - self.low
        bits = np.zeros((window, self.group_size), bool)
        for draw, at in open_draws.items():
            bits[draw - self.low] = [at.ended >> m & 1 for m in range(self.group_size)]
        left = tuple(sorted(d for d, at in open_draws.items() if at.left and not self._whole(at)))
        return LedgerState(
            self.next_draw,
            self.low,
            np.packbits(bits, axis=None, bitorder="little").tobytes(),
            left,
            won=tuple(draw for draw in left if open_draws[draw].won),
            sizes=tuple(sorted((d, n) for d, n in self._sizes.items() if d >= self.low)),
            begun=tuple(sorted((d, v) for d, v in self._begun.items() if d >= self.low)),
            continued=tuple(
                (draw, member, generation)
                for draw, at in sorted(open_draws.items())
                for member, generation in sorted(at.generations.items())
                if not at.ended >> member & 1
            ),
        )

    def _empty(self) -> int:
        """Return the empty seats of smaller groups that are neither complete nor left."""
        waiting = (d for d in self._sizes if not (self.at(d).left or self.at(d).won))
        return sum(self.group_size - self._sizes[draw] for draw in waiting)

    def _id(self, draw: int, member: int) -> str:
        generation = self.at(draw).generations.get(member, 0)
        return continued_id(request_id(self.run_id, draw, member), generation)

    def _whole(self, at: Draw) -> bool:
        return at.ended.bit_count() == self.group_size
