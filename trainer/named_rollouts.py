"""Rollouts of a run that admission did not draw: known by their names, the last few thousand."""

from collections import OrderedDict
from collections.abc import Iterable

NAMES = 8192
"""How many names of what was not drawn are remembered against records written twice."""


class NamedRollouts:
    """Which of them are held, and which are gone for good; groups that have left are `g:GROUP`."""

    def __init__(self) -> None:
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._held: set[str] = set()
        self._full: set[str] = set()

    def held(self) -> int:
        return len(self._held)

    def enter(self, group: str, rollout_id: str, attempt: int) -> str:
        """Hold one. Returns why it cannot be: duplicate or late."""
        name = _name(rollout_id, attempt)
        if name in self._gone or name in self._held:
            return "duplicate"
        if group in self._full or _group(group) in self._gone:
            return "late"
        self._held.add(name)
        return ""

    def end(self, rollout_id: str, attempt: int) -> None:
        """What was held is used or dropped."""
        self._held.remove(_name(rollout_id, attempt))
        self.know([_name(rollout_id, attempt)])

    def fill(self, group: str) -> None:
        """A group that is held is complete: members that come from now on are late."""
        self._full.add(group)

    def leave(self, group: str) -> None:
        """A group has left: members that come from now on are late."""
        self._full.discard(group)
        self.know([_group(group)])

    def names(self) -> tuple[str, ...]:
        """What is gone for good; `know` takes it back."""
        return tuple(self._gone)

    def know(self, names: Iterable[str]) -> None:
        self._gone |= dict.fromkeys(names)
        while len(self._gone) > NAMES:
            self._gone.popitem(last=False)


def group_in(name: str) -> str:
    """The group that a name is of; empty where it is a rollout's."""
    return name[2:] if name[:2] == "g:" else ""


def _group(group: str) -> str:
    return f"g:{group}"


def _name(rollout_id: str, attempt: int) -> str:
    return f"r:{attempt}:{rollout_id}"
