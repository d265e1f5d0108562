"""The steps of one run as a chain in the log: each names its predecessor and its writer.

Invariant: a step counts if its predecessor is the last counted step at its place in the log. So of
two trainers that continue from the same step, the first in the log wins, for every reader; the step
of the other one, and all steps that follow it, do not count. Steps of releases that named neither
predecessor nor writer count in log order, each version once.
"""

from dataclasses import dataclass, field
from typing import Protocol


class Chained(Protocol):
    """The fields of a step that the chain uses."""

    @property
    def version(self) -> int: ...
    @property
    def writer(self) -> str: ...
    @property
    def predecessor(self) -> str: ...


def step_id(step: Chained) -> str:
    """Return the id of a step within a run: its version and its writer."""
    return f"{step.version}/{step.writer}"


@dataclass
class StepChain:
    """The fold of one run's steps, in log order."""

    head: str = ""
    """The last counted step; empty before the first."""
    counted: dict[int, str] = field(default_factory=dict)
    """By version, the id of the counted step."""
    lost: set[str] = field(default_factory=set)
    """Steps that do not count, since others came first."""

    def take(self, step: Chained) -> bool:
        """Add a step; return True if it counts or repeats a counted one."""
        name = step_id(step)
        if self.counted.get(step.version) == name:
            return True
        if step.version in self.counted or self._is_behind(step):
            self.lost.add(name)
            return False
        self.head = self.counted[step.version] = name
        return True

    def _is_behind(self, step: Chained) -> bool:
        """Return True if its predecessor does not count, or another step follows it already.

        A step with an unknown predecessor counts: the log may have lost that record.
        """
        if not step.writer:
            return False
        named = step.predecessor
        version, _, _ = named.partition("/")
        known = version.isdecimal() and self.counted.get(int(version)) == named
        return named != self.head and (not named or known or named in self.lost)

    def after(self, version: int) -> list[str]:
        """Return the counted steps above a version, in order of versions."""
        return [self.counted[each] for each in sorted(self.counted) if each > version]


def writer_of(name: str) -> str:
    """Return the writer of a step, from its id."""
    return name.partition("/")[2]
