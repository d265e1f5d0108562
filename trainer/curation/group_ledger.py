"""The state of each of a run's rollouts: running, held in the buffer, or ended.

Invariant: every member of every published draw is exactly one of running, held or ended, and an
ended member stays ended, even if its record is written again. Ids are functions of (draw, member),
so a bitmap above a low watermark is enough: it grows with the unfinished draws, not with the run.

Rollouts of the run that admission did not draw are tracked by name instead, for the last few
thousand of them; no count includes them.
"""

from collections.abc import Iterable
from dataclasses import replace

from rollcall.schemas.ids import split_continued_id
from rollcall.schemas.messages import Consumed
from rollcall.trainer.curation.drawn_groups import DrawnGroups, LedgerState
from rollcall.trainer.curation.named_rollouts import NamedRollouts, group_in


class GroupLedger:
    """The rollout states of one run; with a group size of 0 it has no draws, only names."""

    def __init__(
        self, run_id: str = "", group_size: int = 0, book: LedgerState | None = None
    ) -> None:
        self.run_id = run_id
        self.group_size = group_size
        self.drawn = DrawnGroups(run_id, group_size, book or LedgerState())
        self._named = NamedRollouts()
        self._held = 0

    @property
    def next_draw(self) -> int:
        """The next draw to publish: every draw below was published."""
        return self.drawn.next_draw

    @property
    def low(self) -> int:
        """The low watermark: every member of every draw below has ended."""
        return self.drawn.low

    # Counts

    def running(self) -> int:
        """Return the number of published drawn rollouts that are neither ended nor held."""
        return self.next_draw * self.group_size - self.drawn.ended - self._held

    def held(self) -> int:
        """Return the number of drawn rollouts that are held."""
        return self._held

    def taken(self) -> int:
        """Return the places in the buffer or a batch that drawn rollouts occupy beside `running()`.

        A complete group occupies the places of all its members, redundant ones included, and a
        smaller group those of a full-size one.
        """
        return self._held + self.drawn.spare()

    def losers(self) -> list[str]:
        """Return redundant rollouts that have not ended, of groups that have left the buffer."""
        return [name for draw in self.drawn.losing() for name in self.drawn.unseen(draw)]

    def unended(self) -> list[str]:
        """Return the ids of all running rollouts that are not redundant."""
        draws = (d for d in range(self.low, self.next_draw) if not self.drawn.at(d).won)
        return [name for draw in draws for name in self.drawn.unseen(draw)]

    def others(self) -> int:
        """Return the number of held rollouts that admission did not draw."""
        return self._named.held()

    def ended(self) -> int:
        """Return the number of ended drawn rollouts, plus empty seats of smaller groups."""
        return self.drawn.ended

    # Changes of state

    def published(self, draw: int, size: int | None = None, version: int | None = None) -> None:
        """Record that a draw and all below it were published; `size` if it may have fewer members,
        `version` the newest policy version, if `begun` is to report it."""
        self.drawn.publish(draw, size, version)

    def enter(self, group: str, rollout_id: str, attempt: int) -> str:
        """Hold a rollout that has arrived. Return the reason if it cannot be held: duplicate,
        redundant, late or not_drawn.

        A late or redundant rollout is marked ended by this call.
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
        # A lower generation was continued already; a higher one was never requested.
        if (passed := split_continued_id(rollout_id)[1] - at.generations.get(member, 0)) != 0:
            return "duplicate" if passed < 0 else "not_drawn"
        if at.won or at.left:
            at.spare += not at.left
            self.drawn.mark_ended(draw, member)
            return "redundant" if at.won else "late"
        at.held |= 1 << member
        self._held += 1
        return ""

    def end(self, group: str, rollout_id: str, attempt: int) -> None:
        """Mark a held rollout as ended: used or dropped. Raises ValueError if it was not held."""
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
        """Record that a group is complete: one that was not drawn accepts no more members."""
        if self.drawn.number(group) < 0:
            self._named.fill(group)

    def win(self, group: str) -> list[str]:
        """Record that a group is complete; return its missing members, now redundant."""
        draw = self.drawn.number(group)
        if draw < self.low:
            return []
        at = self.drawn.opened(draw)
        at.won, at.spare = True, at.ended.bit_count()
        return self.drawn.unseen(draw)

    def go_on(self, group: str, rollout_id: str) -> bool:
        """Record that a held, cancelled rollout continues under its next id; False if its group has
        left the buffer, so that the rollout has ended instead.
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
        at.generations[member] = split_continued_id(rollout_id)[1] + 1
        return True

    def record_resumed(self, draw: int, rollout_id: str) -> None:
        """Record a request in the log that continues another one."""
        member = self.drawn.seat(draw, rollout_id) if draw >= self.low else None
        if member is not None and not self.drawn.at(draw).ended >> member & 1:
            known = self.drawn.opened(draw).generations
            known[member] = max(known.get(member, 0), split_continued_id(rollout_id)[1])

    def leave(self, group: str) -> None:
        """Record that a group leaves the buffer: members that arrive later are late."""
        draw = self.drawn.number(group)
        if draw < 0:
            self._named.leave(group)
        elif draw >= self.low:
            at = self.drawn.opened(draw)
            at.left, at.spare = True, 0

    def lose(self) -> int:
        """Mark all running rollouts as ended; return their number. Late arrivals are duplicates."""
        lost = self.running()
        for draw in range(self.low, self.next_draw):
            at = self.drawn.opened(draw)
            at.left = at.left or not at.held
            for member in range(self.group_size):
                if not at.seen(member):
                    self.drawn.mark_ended(draw, member)
        return lost

    # Queries

    def drew(self, group: str) -> bool:
        """Return True if admission drew the group."""
        return self.drawn.number(group) >= 0

    def size(self, group: str, claimed: int) -> int:
        """Return the size of a group: for a draw as drawn, whatever a record claims."""
        draw = self.drawn.number(group)
        return claimed if draw < 0 else self.drawn.size(draw)

    def book(self, unreadable: int = 0, asked: Iterable[Consumed] = ()) -> LedgerState:
        """Return the state for a checkpoint, without held rollouts: they are read again."""
        return replace(self.drawn.book(), unreadable=unreadable, asked=tuple(asked))

    def names(self) -> tuple[str, ...]:
        """Return names of ended rollouts and groups that were not drawn, for `know`."""
        return self._named.names()

    def know(self, names: Iterable[str]) -> None:
        """Take in names of ended rollouts and groups, but of drawn groups: the bitmap has them."""
        self._named.know(name for name in names if self.drawn.number(group_in(name)) < 0)
