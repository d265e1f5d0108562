"""Which of a run's rollouts are in the air, which wait in the buffer, and which have ended.

The law: every member of every published draw is exactly one of running, held or ended, and what has
ended has ended for good, whatever is written again. Ids are functions of (draw, member), so a
bitmap above a low watermark says it all: it grows with what is unfinished, not with the run.

Rollouts of the run that admission did not draw are known by their names instead, the last few
thousand of them; they are in none of the counts.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.ids import continued_id, draw_of, group_id, parted_id, request_id
from schemas.messages import Consumed

NAMES = 8192
"""How many names of what was not drawn are remembered against records written twice."""

OLD_GROUPS = 1024
"""How many draws that have left are named for trainers that know no bitmap."""


@dataclass(frozen=True, slots=True)
class Book:
    """The accounts as a checkpoint holds them."""

    next_draw: int = 0
    """Every draw below was published whole, and its records are acked."""
    low: int = 0
    """Every member of every draw below has ended."""
    ended: bytes = b""
    """One bit a member, from the first member of draw `low` on; the lowest bit comes first."""
    left: tuple[int, ...] = ()
    """Draws whose group has left the buffer before all their members had ended."""
    unreadable: int = 0
    """Records that may have been some of those in the air, for all that can be read of them."""
    asked: tuple[Consumed, ...] = ()
    """Requests of draws from `next_draw` on lie here or above."""
    won: tuple[int, ...] = ()
    """Those of `left` whose group was whole without the rest, which is redundant."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Draws that are unfinished and have fewer members than others, and how many."""
    begun: tuple[tuple[int, int], ...] = ()
    """Draws that are unfinished and the newest version when they were published, where told."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """Draw, member, and how often it was cancelled and gone on with, where it has not ended."""


@dataclass(slots=True)
class _Draw:
    """One group, a bit a member."""

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


class Accounts:
    """The accounts of one run; with a group size of 0 it has no draws, only names."""

    def __init__(self, run_id: str = "", group_size: int = 0, book: Book | None = None) -> None:
        book = book or Book()
        self.run_id = run_id
        self.group_size = group_size
        self.next_draw = book.next_draw
        self.low = book.low
        self._draws = {draw: _Draw(left=True, won=draw in book.won) for draw in book.left}
        self._sizes = dict(book.sizes)
        self._begun = dict(book.begun)
        self._ended = book.low * group_size
        self._held = 0
        self._names: OrderedDict[str, None] = OrderedDict()
        self._held_names: set[str] = set()
        bits = np.unpackbits(np.frombuffer(book.ended, np.uint8), bitorder="little")
        for place in np.flatnonzero(bits).tolist():
            draw, member = divmod(place, group_size)
            self._mark_ended(book.low + draw, member)
        for draw, member, generation in book.continued:
            self._draws.setdefault(draw, _Draw()).generations[member] = generation

    # How many

    def running(self) -> int:
        """Drawn rollouts that were published, have not ended and are not held."""
        return self.next_draw * self.group_size - self._ended - self._held

    def held(self) -> int:
        """Drawn rollouts that are held."""
        return self._held

    def taken(self) -> int:
        """Drawn rollouts whose places in the buffer or in a batch are taken, beside those running.

        A group that is whole takes the places of all its members, redundant ones included, and a
        smaller group those of a whole one.
        """
        spare = sum(at.spare for at in self._draws.values()) + self._empty()
        return self._held + spare - sum(map(self._unended, self._losing()))

    def losers(self) -> list[str]:
        """Redundant rollouts of groups that have left, and that have not ended."""
        draws = [draw for draw, at in self._draws.items() if at.won and at.left]
        return [self._id(draw, member) for draw in draws for member in self._unseen(draw)]

    def unended(self) -> list[str]:
        """All that is running and not redundant."""
        draws = [d for d in range(self.low, self.next_draw) if not self._at(d).won]
        return [self._id(draw, member) for draw in draws for member in self._unseen(draw)]

    def _at(self, draw: int) -> _Draw:
        return self._draws.get(draw) or _Draw()

    def _id(self, draw: int, member: int) -> str:
        generation = self._at(draw).generations.get(member, 0)
        return continued_id(request_id(self.run_id, draw, member), generation)

    def _empty(self) -> int:
        """Seats that smaller groups leave empty, until these are whole or leave."""
        waiting = (d for d in self._sizes if not (self._draws[d].left or self._draws[d].won))
        return sum(self.group_size - self._sizes[draw] for draw in waiting)

    def _losing(self) -> list[_Draw]:
        return [at for at in self._draws.values() if at.won and at.left]

    def _unended(self, at: _Draw) -> int:
        return self.group_size - (at.ended | at.held).bit_count()

    def _unseen(self, draw: int) -> list[int]:
        at = self._at(draw)
        return [m for m in range(self.group_size) if not (at.ended | at.held) >> m & 1]

    def others(self) -> int:
        """Rollouts that are held and were not drawn."""
        return len(self._held_names)

    def ended(self) -> int:
        """Drawn rollouts that have ended, and seats that smaller groups leave empty."""
        return self._ended

    # What happens to one

    def published(self, draw: int, size: int | None = None, version: int | None = None) -> None:
        """A draw was published, and with it all below; `size` where it may have fewer members,
        `version` the newest, where it is asked for again (`begun`)."""
        self.next_draw = max(self.next_draw, draw + 1)
        if version is not None:
            self._begun[draw] = version
        if size is not None and size < self.group_size and draw not in self._sizes:
            self._sizes[draw] = size
            for member in range(size, self.group_size):
                self._mark_ended(draw, member)

    def enter(self, group: str, rollout_id: str, attempt: int) -> str:
        """Hold a rollout that has come. Returns why it cannot be: duplicate, redundant, late or
        not_drawn.

        What is late or redundant has ended with this.
        """
        draw = self._draw_of(group)
        if draw < 0:
            return self._enter_by_name(group, _name(rollout_id, attempt))
        if draw < self.low or (draw in self._draws and self._whole(self._draws[draw])):
            return "duplicate"
        member = self._seat(draw, rollout_id)
        if member is None:
            return "not_drawn"
        at = self._draws[draw]
        if (at.ended | at.held) >> member & 1:
            return "duplicate"
        if (passed := parted_id(rollout_id)[1] - at.generations.get(member, 0)) != 0:
            return "duplicate" if passed < 0 else "not_drawn"
        if at.won or at.left:
            at.spare += not at.left
            self._mark_ended(draw, member)
            return "redundant" if at.won else "late"
        at.held |= 1 << member
        self._held += 1
        return ""

    def end(self, group: str, rollout_id: str, attempt: int) -> None:
        """What was held is used or dropped. Raises ValueError for what was not held."""
        draw = self._draw_of(group)
        if draw < 0:
            self._held_names.remove(_name(rollout_id, attempt))
            self.know([_name(rollout_id, attempt)])
            return
        member = self._seat(draw, rollout_id)
        at = self._draws[draw]
        if member is None or not at.held >> member & 1:
            msg = f"rollout {rollout_id!r} of {group!r} ends, but it is not held"
            raise ValueError(msg)
        at.held ^= 1 << member
        self._held -= 1
        self._mark_ended(draw, member)

    def win(self, group: str) -> list[str]:
        """A group is whole; returns which of its members have not come: they are redundant."""
        draw = self._draw_of(group)
        if draw < self.low:
            return []
        at = self._draws[draw]
        at.won, at.spare = True, at.ended.bit_count()
        return [self._id(draw, member) for member in self._unseen(draw)]

    def go_on(self, group: str, rollout_id: str) -> bool:
        """What was held was cancelled, and is gone on with under the next id; False where its group
        has left, so that it has ended after all.
        """
        draw = self._draw_of(group)
        member = self._seat(draw, rollout_id)
        at = self._at(draw)
        if member is None or not at.held >> member & 1:
            msg = f"rollout {rollout_id!r} of {group!r} goes on, but it is not held"
            raise ValueError(msg)
        at.held ^= 1 << member
        self._held -= 1
        if at.left:
            self._mark_ended(draw, member)
            return False
        at.generations[member] = parted_id(rollout_id)[1] + 1
        return True

    def went_on(self, draw: int, rollout_id: str) -> None:
        """A request that goes on with another one was found in the log."""
        member = self._seat(draw, rollout_id) if draw >= self.low else None
        if member is not None and not self._draws[draw].ended >> member & 1:
            known = self._draws[draw].generations
            known[member] = max(known.get(member, 0), parted_id(rollout_id)[1])

    def leave(self, group: str) -> None:
        """A group leaves the buffer: members that come from now on are late."""
        draw = self._draw_of(group)
        if draw < 0:
            self.know([f"g:{group}"])
        elif draw >= self.low:
            at = self._draws.setdefault(draw, _Draw())
            at.left, at.spare = True, 0

    def settle(self, group: str, rollout_id: str) -> None:
        """A rollout is known to have ended long ago, and its group to have left."""
        draw = self._draw_of(group)
        if self.low <= draw and (member := self._seat(draw, rollout_id)) is not None:
            self._draws[draw].left = True
            self._mark_ended(draw, member)

    def lose(self) -> int:
        """Give up everything that is running; returns how many. What comes after all is known."""
        lost = self.running()
        for draw in range(self.low, self.next_draw):
            at = self._draws.setdefault(draw, _Draw())
            at.left = at.left or not at.held
            for member in range(self.group_size):
                if not (at.ended | at.held) >> member & 1:
                    self._mark_ended(draw, member)
        return lost

    # What is known

    def begun(self) -> dict[str, int]:
        """Of groups with members in the air the version that was newest when they were begun."""
        waiting = (d for d in self._begun if d >= self.low)
        return {
            group_id(self.run_id, draw): self._begun[draw]
            for draw in waiting
            if not (at := self._draws.get(draw)) or not (at.left or at.won)
        }

    def draw_with(self, rollout_id: str) -> int:
        """Which of the draws with members that have not ended holds a rollout; -1 for none."""
        unfinished = range(self.low, self.next_draw)
        return next((d for d in unfinished if self._seat(d, rollout_id) is not None), -1)

    def name_of(self, draw: int, rollout_id: str) -> str:
        """The id that a drawn rollout goes by now."""
        member = self._seat(draw, rollout_id)
        return rollout_id if member is None else self._id(draw, member)

    def drew(self, group: str) -> bool:
        """Whether admission drew a group."""
        return self._draw_of(group) >= 0

    def size(self, group: str, claimed: int) -> int:
        """How many members a group has: of a draw what was drawn, whatever a record claims."""
        draw = self._draw_of(group)
        return claimed if draw < 0 else self._sizes.get(draw, self.group_size)

    def book(self, unreadable: int = 0, asked: Iterable[Consumed] = ()) -> Book:
        """What a checkpoint holds; what is held is read again and not in it."""
        open_draws = {draw: at for draw, at in self._draws.items() if draw >= self.low}
        window = max(open_draws, default=self.low - 1) + 1 - self.low
        bits = np.zeros((window, self.group_size), bool)
        for draw, at in open_draws.items():
            bits[draw - self.low] = [at.ended >> m & 1 for m in range(self.group_size)]
        left = tuple(sorted(d for d, at in open_draws.items() if at.left and not self._whole(at)))
        won = tuple(draw for draw in left if open_draws[draw].won)
        continued = tuple(
            (draw, member, generation)
            for draw, at in sorted(open_draws.items())
            for member, generation in sorted(at.generations.items())
            if not at.ended >> member & 1
        )
        ended = np.packbits(bits, axis=None, bitorder="little").tobytes()
        sizes = tuple(sorted((d, n) for d, n in self._sizes.items() if d >= self.low))
        begun = tuple(sorted((d, v) for d, v in self._begun.items() if d >= self.low))
        return Book(
            self.next_draw,
            self.low,
            ended,
            left,
            unreadable,
            tuple(asked),
            won,
            sizes,
            begun,
            continued,
        )

    def names(self) -> tuple[str, ...]:
        """Rollouts and groups that are gone for good and were not drawn; `know` takes them back."""
        return tuple(self._names)

    def know(self, names: Iterable[str]) -> None:
        self._names |= {n: None for n in names if n[:2] != "g:" or self._draw_of(n[2:]) < 0}
        while len(self._names) > NAMES:
            self._names.popitem(last=False)

    def left(self) -> tuple[str, ...]:
        """Draws that have left lately, in the same form: for trainers that know no bitmap."""
        recent = range(max(0, self.next_draw - OLD_GROUPS), self.next_draw)
        gone = (d for d in recent if d < self.low or (d in self._draws and self._draws[d].left))
        return tuple(f"g:{group_id(self.run_id, draw)}" for draw in gone)

    def _draw_of(self, group: str) -> int:
        return draw_of(self.run_id, group) if self.group_size else -1

    def _seat(self, draw: int, rollout_id: str) -> int | None:
        """Which member of a published draw a rollout is."""
        if draw >= self.next_draw:
            return None
        at = self._draws.setdefault(draw, _Draw())
        if not at.seats:
            at.seats = {request_id(self.run_id, draw, m): m for m in range(self.group_size)}
        return at.seats.get(parted_id(rollout_id)[0])

    def _mark_ended(self, draw: int, member: int) -> None:
        at = self._draws.setdefault(draw, _Draw())
        if at.ended >> member & 1:
            return
        at.ended |= 1 << member
        at.generations.pop(member, None)
        self._ended += 1
        if self._whole(at):
            at.left, at.seats = True, {}
        while self.low in self._draws and self._whole(self._draws[self.low]):
            del self._draws[self.low]
            self._sizes.pop(self.low, None)
            self._begun.pop(self.low, None)
            self.low += 1

    def _whole(self, at: _Draw) -> bool:
        return at.ended.bit_count() == self.group_size

    def _enter_by_name(self, group: str, name: str) -> str:
        if name in self._names or name in self._held_names:
            return "duplicate"
        if f"g:{group}" in self._names:
            return "late"
        self._held_names.add(name)
        return ""


def _name(rollout_id: str, attempt: int) -> str:
    return f"r:{attempt}:{rollout_id}"
