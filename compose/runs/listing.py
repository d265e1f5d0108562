"""Every run that has a folder here or a step in the log."""

import fcntl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compose.runs import run_folder
from compose.runs.run_folder import RunFolder
from compose.state_files import read_state
from consumers.heldout import HeldOut
from consumers.history.run_curve import RunCurve, held_out_of, steps_of_runs
from schemas.messages import TrainStep

if TYPE_CHECKING:
    from compose.cluster import Cluster

LOCK_FILE = "trainer.lock"


@dataclass(slots=True)
class RunEntry:
    """One run, as it is listed."""

    run_id: str
    recipe: str
    policy_id: str
    started_ms: int
    """When its folder was made, else when its first step was written."""
    steps: int
    version: int | None
    """The newest of which there is a step."""
    success: float | None
    """Of the last complete held-out evaluation."""
    timers: dict[str, dict[str, float]]
    """p50 and p95 of its rollouts' phases, in seconds; empty before it is finished."""
    state: str
    """finished, training, stopped, or elsewhere: there is no folder of it here."""


def list_runs(cluster: "Cluster") -> list[RunEntry]:
    """Every run, the latest last. Held-out results are read for those that are not finished."""
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
    """What was written when the run had come to its end; empty before."""
    path = folder.root / run_folder.SUMMARY_FILE
    summary: dict[str, Any] = read_state(path, dict[str, Any]) or {}
    own: dict[str, Any] = summary.get("policies", {}).get(folder.part, {})
    return summary | own


def _state(folder: RunFolder) -> str:
    if _summary(folder):
        return "finished"
    return "training" if is_training(folder) else "stopped"


def is_training(folder: RunFolder) -> bool:
    """Whether a trainer holds the run's lock; asking takes it for a moment, with others."""
    lock = folder.directory / LOCK_FILE
    if not lock.exists():
        return False
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
