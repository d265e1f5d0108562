"""Which files of weights somebody still needs: a function of the log, the buffer and the folder.

The law: a file stays while its version is one of the newest, was announced less than ten minutes
ago by the clock of the log, is what a request is pinned to that has not begun, is carried by an
open rollout or by a trajectory that is not scored, waits or may be trained on again, belongs to a
checkpoint that training may go on from, or is awaited; and so does every file that such a version
is made from. Whatever else is announced goes. What the log does not know yet stays.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

YOUNG_S = 600.0
NEWEST = 2
"""So many versions: the one that servers come to, and the one that most of them come from."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file of weights, as its name tells."""

    name: str
    version: int
    base: int
    """The version that it was made from; -1 for full weights."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WeightsNeeds:
    """What is known when it is decided what may go."""

    now_ms: int
    """When anything was announced last, by the clock of the log."""
    announced_ms: Mapping[int, int]
    """When each version was announced last, as far as the log still knows."""
    checkpoints: Collection[int] = ()
    """Versions of the checkpoints that training may go on from."""
    open: Mapping[int, int] = field(default_factory=dict)
    """How many open rollouts carry a version."""
    buffered: Mapping[int, int] = field(default_factory=dict)
    """How many trajectories that wait to be trained on carry it."""
    awaited: Collection[int] = ()
    """Versions that are evaluated, or whose weights may have to score tokens."""
    replayed: Mapping[int, int] = field(default_factory=dict)
    """How many carry it that were trained on and may be again, from whichever checkpoint."""
    requested: Mapping[int, int] = field(default_factory=dict)
    """How many requests that have not begun are pinned to it."""
    unscored: Mapping[int, int] = field(default_factory=dict)
    """How many trajectories that nobody has scored carry it."""

    def reasons(self, version: int) -> tuple[str, ...]:
        """Why its weights stay, whatever is made from them."""
        known = sorted(self.announced_ms)
        said_ms = self.announced_ms.get(version)
        reasons = {
            "not announced": not known or version > known[-1],
            "newest": version in known[-NEWEST:],
            "young": said_ms is not None and self.now_ms - said_ms < YOUNG_S * 1000,
            "checkpoint": version in self.checkpoints,
            "awaited": version in self.awaited,
            f"requested {self.requested.get(version)}": version in self.requested,
            f"open {self.open.get(version)}": version in self.open,
            f"unscored {self.unscored.get(version)}": version in self.unscored,
            f"buffered {self.buffered.get(version)}": version in self.buffered,
            f"replayed {self.replayed.get(version)}": version in self.replayed,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)


def holders(files: Collection[KeptFile], needs: WeightsNeeds) -> dict[int, tuple[str, ...]]:
    """By version why its files stay; nothing for those of one that may go."""
    versions = {file.version for file in files}
    found = {version: needs.reasons(version) for version in sorted(versions)}
    kept = chains(files, (version for version, reasons in found.items() if reasons))
    made_from: dict[int, list[int]] = {}
    for file in sorted(files, key=lambda file: file.version):
        if file.version in kept and file.base in versions:
            made_from.setdefault(file.base, []).append(file.version)
    for base, made in made_from.items():
        found[base] = (*found[base], *(f"base of {version}" for version in dict.fromkeys(made)))
    return found


def may_go(files: Collection[KeptFile], needs: WeightsNeeds) -> tuple[KeptFile, ...]:
    """The files that nobody needs, the oldest first."""
    found = holders(files, needs)
    return tuple(file for file in _in_order(files) if not found[file.version])


def besides(files: Collection[KeptFile], versions: Iterable[int]) -> tuple[KeptFile, ...]:
    """The files without which these versions can be had, the oldest first."""
    kept = chains(files, versions)
    return tuple(file for file in _in_order(files) if file.version not in kept)


def chains(files: Iterable[KeptFile], versions: Iterable[int]) -> set[int]:
    """These versions, and all that they are made from."""
    bases: dict[int, set[int]] = {}
    for file in files:
        bases.setdefault(file.version, set()).add(file.base)
    kept, wanted = set[int](), list(versions)
    while wanted:
        version = wanted.pop()
        if version not in kept:
            kept.add(version)
            wanted += [base for base in bases.get(version, ()) if base >= 0]
    return kept


def _in_order(files: Iterable[KeptFile]) -> list[KeptFile]:
    return sorted(files, key=lambda file: (file.version, file.name))
