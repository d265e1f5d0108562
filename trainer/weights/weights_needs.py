"""The weights files that are still needed: a function of the log, the buffer and the folder.

A file is kept while its version is one of the newest, was announced less than ten minutes ago by
the time of the log, is pinned by a request that has not begun, is carried by an open rollout or by
a trajectory that is unscored, in the buffer or in a replay pool, belongs to a checkpoint that
training may resume from, or is awaited; and so is every file that such a version is made from.
Other announced versions are deleted. Versions that are not announced yet are kept.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

YOUNG_S = 600.0
NEWEST = 2
"""The number of newest versions kept: that servers change to, and that most change from."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One weights file, as parsed from its name."""

    name: str
    version: int
    base: int
    """The version that it was made from; -1 for full weights."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WeightsNeeds:
    """The inputs of the decision which files may be deleted.

    A rollout carries the versions that sampled its tokens, and the one that it is pinned to.
    """

    now_ms: int
    """The time of the last announcement, by the log."""
    announced_ms: Mapping[int, int]
    """The time of each version's last announcement that is still in the log."""
    checkpoints: Collection[int] = ()
    """Versions of the checkpoints that training may resume from."""
    open: Mapping[int, int] = field(default_factory=dict)
    """By version, the number of open rollouts that carry it."""
    buffered: Mapping[int, int] = field(default_factory=dict)
    """By version, the number of trajectories in the buffer that carry it."""
    awaited: Collection[int] = ()
    """Versions that are evaluated, or whose weights may have to score tokens."""
    replayed: Mapping[int, int] = field(default_factory=dict)
    """By version, the number of trajectories that carry it in replay pools of any checkpoint."""
    requested: Mapping[int, int] = field(default_factory=dict)
    """By version, the number of requests that are pinned to it and have not begun."""
    unscored: Mapping[int, int] = field(default_factory=dict)
    """By version, the number of unscored trajectories that carry it."""

    def reasons(self, version: int) -> tuple[str, ...]:
        """Return why its weights are kept, apart from deltas made from them."""
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
    """Return by version why its files are kept; empty if they may be deleted."""
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
    """Return the files that are not needed, the oldest first."""
    found = holders(files, needs)
    return tuple(file for file in _in_order(files) if not found[file.version])


def besides(files: Collection[KeptFile], versions: Iterable[int]) -> tuple[KeptFile, ...]:
    """Return the files that these versions do not depend on, the oldest first."""
    kept = chains(files, versions)
    return tuple(file for file in _in_order(files) if file.version not in kept)


def chains(files: Iterable[KeptFile], versions: Iterable[int]) -> set[int]:
    """Return these versions and all versions that they are made from."""
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
