"""The steps of one run as a chain in the log: each names the one before it, and who wrote it.

The law: a step counts if the step that it names is the last one that counts where it stands in the
log. So of two trainers that go on from the same step the first in the log wins, whoever reads it;
what the other one wrote, and all that names it, counts for nobody. Steps of releases that named
neither count as they come, each version once.
"""

from dataclasses import dataclass, field
from typing import Protocol


class Chained(Protocol):
    """A step as far as the chain goes."""

    @property
    def version(self) -> int: ...
    @property
    def writer(self) -> str: ...
    @property
    def predecessor(self) -> str: ...


def step_id(step: Chained) -> str:
    """Names one step of a run: its version and who wrote it."""
    return f"{step.version}/{step.writer}"


@dataclass
class StepChain:
    """The fold of one run's steps, in the order of the log."""

    head: str = ""
    """The last step that counts; empty before the first."""
    counted: dict[int, str] = field(default_factory=dict)
    """By version the id of the step that counts."""
    lost: set[str] = field(default_factory=set)
    """Steps that do not count: others came first."""

    def take(self, step: Chained) -> bool:
        """Whether a step counts, or says again what counts."""
        name = step_id(step)
        if self.counted.get(step.version) == name:
            return True
        if step.version in self.counted or self._is_behind(step):
            self.lost.add(name)
            return False
        self.head = self.counted[step.version] = name
        return True

    def _is_behind(self, step: Chained) -> bool:
        """Whether it goes on from a step that another one has gone on from before.

        One that names a step which is not there may follow what is lost from the log.
        """
        if not step.writer:
            return False
        named = step.predecessor
        version, _, _ = named.partition("/")
        known = version.isdecimal() and self.counted.get(int(version)) == named
        return named != self.head and (not named or known or named in self.lost)

    def after(self, version: int) -> list[str]:
        """The steps that count above a version, in the order of their versions."""
        return [self.counted[each] for each in sorted(self.counted) if each > version]


def writer_of(name: str) -> str:
    """Who wrote a step, by its id."""
    return name.partition("/")[2]
