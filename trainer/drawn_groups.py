"""The groups that admission drew, a bit a member: a window above the lowest that has not ended."""

from dataclasses import dataclass, field

import numpy as np

from schemas.ids import continued_id, draw_of, group_id, parted_id, request_id
from trainer.book import Book


@dataclass(slots=True)
class Draw:
    """One group."""

    ended: int = 0
    held: int = 0
    left: bool = False
    won: bool = False
    """Its group is whole: whoever comes from now on is redundant."""
    spare: int = 0
    """Members that have ended though their group, which has won, has not left."""
    seats: dict[str, int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    """By member how often it was cancelled and gone on with."""

    def seen(self, member: int) -> bool:
        """Whether a member has ended or is held."""
        return bool((self.ended | self.held) >> member & 1)


class DrawnGroups:
    """Those of one run; with a group size of 0 there are none."""

    def __init__(self, run_id: str, group_size: int, book: Book) -> None:
        self.run_id, self.group_size = run_id, group_size
        self.next_draw, self.low = book.next_draw, book.low
        self.ended = book.low * group_size
        """Members that have ended, and seats that smaller groups leave empty."""
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
        """Which draw a group is; -1 where it is none."""
        return draw_of(self.run_id, group) if self.group_size else -1

    def at(self, draw: int) -> Draw:
        """What is known of a draw; not to be changed."""
        return self._draws.get(draw) or Draw()

    def opened(self, draw: int) -> Draw:
        """What is known of a draw from `low` on."""
        return self._draws.setdefault(draw, Draw())

    def publish(self, draw: int, size: int | None, version: int | None) -> None:
        """A draw was published, and with it all below."""
        self.next_draw = max(self.next_draw, draw + 1)
        if version is not None:
            self._begun[draw] = version
        if size is not None and size < self.group_size and draw not in self._sizes:
            self._sizes[draw] = size
            for member in range(size, self.group_size):
                self.mark_ended(draw, member)

    def mark_ended(self, draw: int, member: int) -> None:
        """A member has ended, for good."""
        at = self.opened(draw)
        if at.ended >> member & 1:
            return
        at.ended |= 1 << member
        at.generations.pop(member, None)
        self.ended += 1
        if self._whole(at):
            at.left, at.seats = True, {}
        while self.low in self._draws and self._whole(self._draws[self.low]):
            del self._draws[self.low]
            self._sizes.pop(self.low, None)
            self._begun.pop(self.low, None)
            self.low += 1

    def has_ended(self, draw: int) -> bool:
        """Whether all members of a draw have ended."""
        return draw < self.low or (draw in self._draws and self._whole(self._draws[draw]))

    def seat(self, draw: int, rollout_id: str) -> int | None:
        """Which member of a published draw a rollout is."""
        if draw >= self.next_draw:
            return None
        at = self.opened(draw)
        if not at.seats:
            at.seats = {request_id(self.run_id, draw, m): m for m in range(self.group_size)}
        return at.seats.get(parted_id(rollout_id)[0])

    def size(self, draw: int) -> int:
        """How many members a draw has."""
        return self._sizes.get(draw, self.group_size)

    def with_member(self, rollout_id: str) -> int:
        """Which of the draws with members that have not ended holds a rollout; -1 for none."""
        unfinished = range(self.low, self.next_draw)
        return next((d for d in unfinished if self.seat(d, rollout_id) is not None), -1)

    def name_of(self, draw: int, rollout_id: str) -> str:
        """The id that a drawn rollout goes by now."""
        member = self.seat(draw, rollout_id)
        return rollout_id if member is None else self._id(draw, member)

    def unseen(self, draw: int) -> list[str]:
        """The members of a draw that have neither ended nor come."""
        at = self.at(draw)
        return [self._id(draw, m) for m in range(self.group_size) if not at.seen(m)]

    def losing(self) -> list[int]:
        """Draws that have left, and whose members that have not ended are redundant."""
        return [draw for draw, at in self._draws.items() if at.won and at.left]

    def spare(self) -> int:
        """Seats that are taken though nobody is held on them, less those that nobody waits for."""
        losing = [self._draws[draw] for draw in self.losing()]
        unended = sum(self.group_size - (at.ended | at.held).bit_count() for at in losing)
        return sum(at.spare for at in self._draws.values()) + self._empty() - unended

    def begun(self) -> dict[str, int]:
        """Of groups with members in the air the version that was newest when they were begun."""
        waiting = [d for d in self._begun if d >= self.low]
        gone = {d for d in waiting if self.at(d).left or self.at(d).won}
        return {group_id(self.run_id, d): self._begun[d] for d in waiting if d not in gone}

    def book(self) -> Book:
        """All of this, as a checkpoint holds it."""
        open_draws = {draw: at for draw, at in self._draws.items() if draw >= self.low}
        window = max(open_draws, default=self.low - 1) + 1 - self.low
        bits = np.zeros((window, self.group_size), bool)
        for draw, at in open_draws.items():
            bits[draw - self.low] = [at.ended >> m & 1 for m in range(self.group_size)]
        left = tuple(sorted(d for d, at in open_draws.items() if at.left and not self._whole(at)))
        return Book(
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
        """Seats that smaller groups leave empty, until these are whole or leave."""
        waiting = (d for d in self._sizes if not (self.at(d).left or self.at(d).won))
        return sum(self.group_size - self._sizes[draw] for draw in waiting)

    def _id(self, draw: int, member: int) -> str:
        generation = self.at(draw).generations.get(member, 0)
        return continued_id(request_id(self.run_id, draw, member), generation)

    def _whole(self, at: Draw) -> bool:
        return at.ended.bit_count() == self.group_size
