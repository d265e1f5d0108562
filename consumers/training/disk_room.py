"""Checks before a step that the disk has room for the next version."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.errors import DiskFull
from rollcall.schemas.store_urls import local_path
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.weights_needs import besides

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NEWEST = 2
"""Checkpoints that a restart needs: the newest, and the one before in case of damage."""


def require_room(run: TrainingRun, needed_bytes: int) -> None:
    """Raise DiskFull if there are fewer free bytes than the next version needs."""
    if shutil.disk_usage(run.directory).free < needed_bytes:
        raise disk_full(run, needed_bytes)


def is_full(error: BaseException | None) -> bool:
    """Return True if an error, or one of its causes, reports a full disk or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def disk_full(run: TrainingRun, needed_bytes: int) -> DiskFull:
    """Return the error, with the bytes needed and free, and what could be deleted."""
    free = shutil.disk_usage(run.directory).free
    could_go = "; ".join(_could_go(run)) or "nothing of this run"
    return DiskFull(
        f"{run.directory} has {_mb(free)} free and the next version of {run.policy_id!r} needs "
        f"{_mb(needed_bytes)}; training stands before that step and nothing announced is missing. "
        f"What could go: {could_go}. Make room and start the run again"
    )


def sizes_of(state: LearnerState) -> tuple[int, int, int]:
    """Return the bytes of the weights, of the optimiser's tensors and of the random state."""
    weights, optimiser, rng = (
        sum(len(tensor.data) for tensor in kind.values())
        for kind in (state.weights, state.optimiser, state.rng)
    )
    return weights, optimiser, rng


def needed_bytes(state: LearnerState, run: TrainingRun) -> int:
    """Return the disk space of a version: weights, twice if they are published on this machine,
    and moments, even before they exist.
    """
    weights, optimiser, rng = sizes_of(state)
    times = 2 if local_path(run.weights) else 1
    return times * weights + max(optimiser, 2 * weights) + rng


def _size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _could_go(run: TrainingRun) -> Iterator[str]:
    older = list(checkpoints.kept(run.checkpoints).values())[:-NEWEST]
    if older:
        names = f"{older[0].name} to {older[-1].name}" if len(older) > 1 else older[0].name
        yield f"checkpoints {names} ({_mb(sum(map(_size_of, older)))}), with `retrain` from there"
    if local_path(run.weights) is None:
        return
    there = weights_files.files_in(run.weights)
    newest = sorted({file.version for file in there})[-NEWEST:]
    weights = besides(there, newest)
    if weights:
        size = sum(file.size_bytes for file in weights)
        deltas = sum(file.base >= 0 for file in weights)
        kinds = f", {deltas} of them deltas" if deltas else ""
        yield f"{len(weights)} older files{kinds} in {run.weights} ({_mb(size)})"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
