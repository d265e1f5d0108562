"""What a worker has only so many of, such as processes of agents, and who is next in line.

Not asyncio's Semaphore: before Python 3.11.9 it loses one where whoever was just let in is
cancelled beside others in line.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from schemas.errors import WorkFailed
from schemas.names import hint


@dataclass(slots=True, eq=False)
class _Place:
    """Somebody's in the line."""

    names: tuple[str, ...]
    taken: "asyncio.Future[None]"


class Slots:
    """So many of each class; whoever wants several takes them together or none.

    First come, first served: nobody is passed by whoever wants a class that he waits for, but for
    those who hold some already: others may wait for these. For one event loop.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = dict(most)
        self._free = dict(most)
        self._line = OrderedDict[_Place, None]()
        """In order; where each is found at once."""
        self._ahead = OrderedDict[_Place, None]()
        """Those who go before them, in order."""
        self._wanted: Counter[str] = Counter()
        """How many in line want each class."""

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line) + len(self._ahead)

    def _check(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.most:
                msg = f"no setting says how many {name!r} this worker may hold: put {name} = 64, "
                msg += f"say, into environments.slots; {hint(name, self.most)}"
                raise WorkFailed("bad_config", msg, retriable=False)

    async def take(
        self,
        names: Sequence[str],
        stands: Callable[[], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Wait for one of each; to be given back once.

        `stands` is called where they are not to be had at once, before anything is waited for.
        `ahead`: whoever takes them holds others, and goes before all who hold none. Raises
        WorkFailed for a class that nobody set.
        """
        self._check(names)
        place = _Place(tuple(dict.fromkeys(names)), asyncio.get_running_loop().create_future())
        behind = not ahead and any(self._wanted[name] for name in place.names)
        (self._ahead if ahead else self._line)[place] = None
        self._wanted.update(place.names)
        if not behind:
            self._deal()
        try:
            if not place.taken.done():
                if stands is not None:
                    stands()
                await place.taken
        except BaseException:
            if place in self._line or place in self._ahead:
                self._leave(place)
                self._deal()
            else:  # it was dealt just before
                self.give(place.names)
            raise

    def give(self, names: Sequence[str]) -> None:
        """Give one of each back; whoever is first in line has it."""
        for name in dict.fromkeys(names):
            self._free[name] += 1
        self._deal()

    def _leave(self, place: _Place) -> None:
        del (self._ahead if place in self._ahead else self._line)[place]
        self._wanted.subtract(place.names)

    def _take(self, names: Sequence[str]) -> None:
        for name in names:
            self._free[name] -= 1

    def _deal(self) -> None:
        """Serve the line in order; a class that somebody waits for is kept for him.

        Only as far as somebody may be served: a line of thousands is not gone through at each end
        of a session.
        """
        kept, served = set[str](), list[_Place]()
        for place in chain(self._ahead, self._line):
            if not self._may_serve(kept):
                break
            if place.taken.done():  # cancelled, and about to leave
                continue
            if kept.isdisjoint(place.names) and all(self._free[name] > 0 for name in place.names):
                self._take(place.names)
                served.append(place)
            else:
                kept.update(place.names)
        for place in served:
            self._leave(place)
            place.taken.set_result(None)

    def _may_serve(self, kept: set[str]) -> bool:
        """Whether anybody in line wants what is free and not kept."""
        free = (name for name, count in self._free.items() if count > 0 and name not in kept)
        return any(self._wanted[name] for name in free)
