"""The list of runs that have a folder here or a step in the log."""

import fcntl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.state_files import read_state
from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.history.runs.run_curve import RunCurve, held_out_of, steps_of_runs
from rollcall.schemas.messages import TrainStep

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster

LOCK_FILE = "trainer.lock"


@dataclass(slots=True)
class RunEntry:
    """One run in the list."""

    run_id: str
    recipe: str
    policy_id: str
    started_ms: int
    """The time at which its folder was made, else that of its first step."""
    steps: int
    version: int | None
    """The newest version with a step."""
    success: float | None
    """The success of the last complete held-out evaluation."""
    timers: dict[str, dict[str, float]]
    """The p50 and p95 of its rollouts' phases, in seconds; empty until it is finished."""
    state: str
    """The state: finished, training, stopped, or elsewhere (it has no folder here)."""


def list_runs(cluster: "Cluster") -> list[RunEntry]:
    """Return all runs, the latest last. Held-out results are read for unfinished ones."""
    written = steps_of_runs(cluster)
    folders = {folder.name: folder for folder in run_folder.all_of(cluster.settings.state())}
    names = folders.keys() | written.keys()
    unfinished = {name for name in names if name not in folders or not _summary(folders[name])}
    rules = {name: folders[name].held_out_rule() for name in unfinished & folders.keys()}
    heldout = held_out_of(cluster, unfinished, rules)
    entries = [
        _entry(name, written.get(name, []), folders.get(name), heldout.get(name)) for name in names
    ]
    return sorted(entries, key=lambda run: (run.started_ms, run.run_id))


def _entry(
    run_id: str,
    written: list[tuple[TrainStep, int]],
    folder: RunFolder | None,
    heldout: HeldOut | None,
) -> RunEntry:
    steps = [step for step, _ in written]
    made = (folder.root / run_folder.RUN_FILE).stat().st_mtime if folder else 0.0
    curve = RunCurve.of(run_id, steps, heldout)
    success = curve.heldout[-1][1] if curve.heldout else None
    summary = _summary(folder) if folder else {}
    return RunEntry(
        run_id=run_id,
        recipe=folder.recipe.name if folder else "",
        policy_id=folder.policy_id if folder else steps[0].policy_id,
        started_ms=int(made * 1000) if folder else written[0][1],
        steps=len(curve.steps),
        version=curve.steps[-1].version if curve.steps else None,
        success=success if heldout or not folder else summary.get("success_after"),
        timers=summary.get("timers", {}),
        state=_state(folder) if folder else "elsewhere",
    )


def _summary(folder: RunFolder) -> dict[str, Any]:
    """Read the summary that was written at the run's end; empty before."""
    path = folder.root / run_folder.SUMMARY_FILE
    summary: dict[str, Any] = read_state(path, dict[str, Any]) or {}
    own: dict[str, Any] = summary.get("policies", {}).get(folder.part, {})
    return summary | own


def _state(folder: RunFolder) -> str:
    if _summary(folder):
        return "finished"
    return "training" if is_training(folder) else "stopped"


def is_training(folder: RunFolder) -> bool:
    """Return True if a trainer holds the run's lock; the check takes a shared lock briefly."""
    lock = folder.directory / LOCK_FILE
    if not lock.exists():
        return False
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
