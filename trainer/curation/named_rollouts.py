"""Rollouts of a run that admission did not draw, tracked by name: the last few thousand."""

from collections import OrderedDict
from collections.abc import Iterable

NAMES = 8192
"""The number of remembered names, to detect records that are written twice."""


class NamedRollouts:
    """The held and the ended ones; groups that have left are named `g:GROUP`."""

    def __init__(self) -> None:
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._held: set[str] = set()
        self._full: set[str] = set()

    def held(self) -> int:
        return len(self._held)

    def enter(self, group: str, rollout_id: str, attempt: int) -> str:
        """Hold a rollout. Return the reason if it cannot be held: duplicate or late."""
        name = _name(rollout_id, attempt)
        if name in self._gone or name in self._held:
            return "duplicate"
        if group in self._full or _group(group) in self._gone:
            return "late"
        self._held.add(name)
        return ""

    def end(self, rollout_id: str, attempt: int) -> None:
        """Mark a held rollout as ended: used or dropped."""
        self._held.remove(_name(rollout_id, attempt))
        self.know([_name(rollout_id, attempt)])

    def fill(self, group: str) -> None:
        """Record that a held group is complete: members that arrive later are late."""
        self._full.add(group)

    def leave(self, group: str) -> None:
        """Record that a group has left the buffer: members that arrive later are late."""
        self._full.discard(group)
        self.know([_group(group)])

    def names(self) -> tuple[str, ...]:
        """Return the names of ended rollouts and groups, for `know`."""
        return tuple(self._gone)

    def know(self, names: Iterable[str]) -> None:
        self._gone |= dict.fromkeys(names)
        while len(self._gone) > NAMES:
            self._gone.popitem(last=False)


def group_in(name: str) -> str:
    """Return the group of a name; empty if it names a rollout."""
    return name[2:] if name[:2] == "g:" else ""


def _group(group: str) -> str:
    return f"g:{group}"


def _name(rollout_id: str, attempt: int) -> str:
    return f"r:{attempt}:{rollout_id}"
