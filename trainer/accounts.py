"""Which of a run's rollouts are in the air, which wait in the buffer, and which have ended.

The law: every member of every published draw is exactly one of running, held or ended, and what has
ended has ended for good, whatever is written again. Ids are functions of (draw, member), so a
bitmap above a low watermark says it all: it grows with what is unfinished, not with the run.

Rollouts of the run that admission did not draw are known by their names instead, the last few
thousand of them; they are in none of the counts.
"""

from collections.abc import Iterable
from dataclasses import replace

from schemas.ids import group_id, parted_id
from schemas.messages import Consumed
from trainer.book import Book
from trainer.drawn_groups import DrawnGroups
from trainer.named_rollouts import NamedRollouts, group_in

OLD_GROUPS = 1024
"""How many draws that have left are named for trainers that know no bitmap."""


class Accounts:
    """The accounts of one run; with a group size of 0 it has no draws, only names."""

    def __init__(self, run_id: str = "", group_size: int = 0, book: Book | None = None) -> None:
        self.run_id = run_id
        self.group_size = group_size
        self.drawn = DrawnGroups(run_id, group_size, book or Book())
        self._named = NamedRollouts()
        self._held = 0

    @property
    def next_draw(self) -> int:
        """Every draw below was published."""
        return self.drawn.next_draw

    @property
    def low(self) -> int:
        """Every member of every draw below has ended."""
        return self.drawn.low

    # How many

    def running(self) -> int:
        """Drawn rollouts that were published, have not ended and are not held."""
        return self.next_draw * self.group_size - self.drawn.ended - self._held

    def held(self) -> int:
        """Drawn rollouts that are held."""
        return self._held

    def taken(self) -> int:
        """Drawn rollouts whose places in the buffer or in a batch are taken, beside those running.

        A group that is whole takes the places of all its members, redundant ones included, and a
        smaller group those of a whole one.
        """
        return self._held + self.drawn.spare()

    def losers(self) -> list[str]:
        """Redundant rollouts of groups that have left, and that have not ended."""
        return [name for draw in self.drawn.losing() for name in self.drawn.unseen(draw)]

    def unended(self) -> list[str]:
        """All that is running and not redundant."""
        draws = (d for d in range(self.low, self.next_draw) if not self.drawn.at(d).won)
        return [name for draw in draws for name in self.drawn.unseen(draw)]

    def others(self) -> int:
        """Rollouts that are held and were not drawn."""
        return self._named.held()

    def ended(self) -> int:
        """Drawn rollouts that have ended, and seats that smaller groups leave empty."""
        return self.drawn.ended

    # What happens to one

    def published(self, draw: int, size: int | None = None, version: int | None = None) -> None:
        """A draw was published, and with it all below; `size` where it may have fewer members,
        `version` the newest, where it is asked for again (`begun`)."""
        self.drawn.publish(draw, size, version)

    def enter(self, group: str, rollout_id: str, attempt: int) -> str:
        """Hold a rollout that has come. Returns why it cannot be: duplicate, redundant, late or
        not_drawn.

        What is late or redundant has ended with this.
        """
        draw = self.drawn.number(group)
        if draw < 0:
            return self._named.enter(group, rollout_id, attempt)
        if self.drawn.has_ended(draw):
            return "duplicate"
        member = self.drawn.seat(draw, rollout_id)
        if member is None:
            return "not_drawn"
        at = self.drawn.opened(draw)
        if at.seen(member):
            return "duplicate"
        if (passed := parted_id(rollout_id)[1] - at.generations.get(member, 0)) != 0:
            return "duplicate" if passed < 0 else "not_drawn"
        if at.won or at.left:
            at.spare += not at.left
            self.drawn.mark_ended(draw, member)
            return "redundant" if at.won else "late"
        at.held |= 1 << member
        self._held += 1
        return ""

    def end(self, group: str, rollout_id: str, attempt: int) -> None:
        """What was held is used or dropped. Raises ValueError for what was not held."""
        draw = self.drawn.number(group)
        if draw < 0:
            self._named.end(rollout_id, attempt)
            return
        member = self.drawn.seat(draw, rollout_id)
        at = self.drawn.opened(draw)
        if member is None or not at.held >> member & 1:
            msg = f"rollout {rollout_id!r} of {group!r} ends, but it is not held"
            raise ValueError(msg)
        at.held ^= 1 << member
        self._held -= 1
        self.drawn.mark_ended(draw, member)

    def fill(self, group: str) -> None:
        """A group is complete: one that was not drawn takes no more members than it said."""
        if self.drawn.number(group) < 0:
            self._named.fill(group)

    def win(self, group: str) -> list[str]:
        """A group is whole; returns which of its members have not come: they are redundant."""
        draw = self.drawn.number(group)
        if draw < self.low:
            return []
        at = self.drawn.opened(draw)
        at.won, at.spare = True, at.ended.bit_count()
        return self.drawn.unseen(draw)

    def go_on(self, group: str, rollout_id: str) -> bool:
        """What was held was cancelled, and is gone on with under the next id; False where its group
        has left, so that it has ended after all.
        """
        draw = self.drawn.number(group)
        member = self.drawn.seat(draw, rollout_id)
        at = self.drawn.at(draw)
        if member is None or not at.held >> member & 1:
            msg = f"rollout {rollout_id!r} of {group!r} goes on, but it is not held"
            raise ValueError(msg)
        at.held ^= 1 << member
        self._held -= 1
        if at.left:
            self.drawn.mark_ended(draw, member)
            return False
        at.generations[member] = parted_id(rollout_id)[1] + 1
        return True

    def went_on(self, draw: int, rollout_id: str) -> None:
        """A request that goes on with another one was found in the log."""
        member = self.drawn.seat(draw, rollout_id) if draw >= self.low else None
        if member is not None and not self.drawn.at(draw).ended >> member & 1:
            known = self.drawn.opened(draw).generations
            known[member] = max(known.get(member, 0), parted_id(rollout_id)[1])

    def leave(self, group: str) -> None:
        """A group leaves the buffer: members that come from now on are late."""
        draw = self.drawn.number(group)
        if draw < 0:
            self._named.leave(group)
        elif draw >= self.low:
            at = self.drawn.opened(draw)
            at.left, at.spare = True, 0

    def settle(self, group: str, rollout_id: str) -> None:
        """A rollout is known to have ended long ago, and its group to have left."""
        draw = self.drawn.number(group)
        if self.low <= draw and (member := self.drawn.seat(draw, rollout_id)) is not None:
            self.drawn.opened(draw).left = True
            self.drawn.mark_ended(draw, member)

    def lose(self) -> int:
        """Give up everything that is running; returns how many. What comes after all is known."""
        lost = self.running()
        for draw in range(self.low, self.next_draw):
            at = self.drawn.opened(draw)
            at.left = at.left or not at.held
            for member in range(self.group_size):
                if not at.seen(member):
                    self.drawn.mark_ended(draw, member)
        return lost

    # What is known

    def drew(self, group: str) -> bool:
        """Whether admission drew a group."""
        return self.drawn.number(group) >= 0

    def size(self, group: str, claimed: int) -> int:
        """How many members a group has: of a draw what was drawn, whatever a record claims."""
        draw = self.drawn.number(group)
        return claimed if draw < 0 else self.drawn.size(draw)

    def book(self, unreadable: int = 0, asked: Iterable[Consumed] = ()) -> Book:
        """What a checkpoint holds; what is held is read again and not in it."""
        return replace(self.drawn.book(), unreadable=unreadable, asked=tuple(asked))

    def names(self) -> tuple[str, ...]:
        """Rollouts and groups that are gone for good and were not drawn; `know` takes them back."""
        return self._named.names()

    def know(self, names: Iterable[str]) -> None:
        """These are gone for good; of groups that admission drew the bitmap knows better."""
        self._named.know(name for name in names if self.drawn.number(group_in(name)) < 0)

    def left(self) -> tuple[str, ...]:
        """Draws that have left lately, in the same form: for trainers that know no bitmap."""
        recent = range(max(0, self.next_draw - OLD_GROUPS), self.next_draw)
        gone = (d for d in recent if d < self.low or self.drawn.at(d).left)
        return tuple(f"g:{group_id(self.run_id, draw)}" for draw in gone)
