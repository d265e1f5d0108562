"""Reports a run's weights files: what exists, who needs it, what its trainer would delete.

It uses only the log, the storage of the weights, and the run's checkpoints, with the same functions
as the trainer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.training_record import TrainedRun
from rollcall.consumers.history.versions.version_use import VersionUse
from rollcall.consumers.history.versions.versions_in_use import RunOfPolicy, VersionsInUse
from rollcall.trainer.checkpoints.resume_points import ResumePoint
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.weights_needs import KeptFile, holders


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """One weights file."""

    version: int
    kind: str
    """full, or delta."""
    base: int
    """The base version of a delta; -1 for full weights."""
    precision: str
    """Empty if no record of the version is left."""
    size_bytes: int
    announced_ms: int | None
    """None if the log does not contain its announcement."""
    needed_by: tuple[str, ...]
    """The holders that need it; if empty it may be deleted."""
    name: str


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """All weights files of a run."""

    run_id: str
    policy_id: str
    where: str
    files: tuple[KeptWeights, ...]
    size_bytes: int
    may_go_bytes: int
    now_ms: int
    """The reference time for ages: that of the last announcement."""


def kept_weights(
    history: History,
    trained: TrainedRun,
    run: RunOfPolicy,
    checkpoints: Collection[int],
    points: Sequence[ResumePoint],
) -> WeightsReport:
    """Return the present files; `checkpoints` are the versions to resume from, at `points`.

    Raises Unavailable if the log or the storage is unavailable.
    """
    in_use = VersionsInUse(history, trained.policy_id)
    use = in_use.announced()
    in_use.add_rollouts(use, run, points)
    newest = max(use.announced_ms, default=-1)
    awaited = trained.config.scoring_versions(newest)
    needs = use.needs(checkpoints=checkpoints, awaited=awaited)
    there = weights_files.files_in(trained.weights)
    found = holders(there, needs)
    files = tuple(_kept(file, use, found[file.version]) for file in there)
    return WeightsReport(
        trained.run_id,
        trained.policy_id,
        trained.weights,
        files,
        sum(file.size_bytes for file in files),
        sum(file.size_bytes for file in files if not file.needed_by),
        use.now_ms,
    )


def _kept(file: KeptFile, use: VersionUse, needed_by: tuple[str, ...]) -> KeptWeights:
    return KeptWeights(
        file.version,
        "delta" if file.base >= 0 else "full",
        file.base,
        use.precisions.get(file.version, ""),
        file.size_bytes,
        use.announced_ms.get(file.version),
        needed_by,
        file.name,
    )
