"""`rollcall runs`: every run that has a folder here or a step in the log."""

import fcntl
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table

from compose import curves
from compose.curves import Curve
from compose.runs import run_folder
from compose.runs.run_folder import RunFolder
from consumers.heldout import HeldOut
from consumers.history.times import iso
from schemas.messages import TrainStep

if TYPE_CHECKING:
    from compose.cluster import Cluster

LOCK_FILE = "trainer.lock"


@dataclass(slots=True)
class Listed:
    """One run as the table shows it."""

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
    state: str
    """finished, training, stopped, or elsewhere: there is no folder of it here."""


def list_runs(cluster: "Cluster") -> list[Listed]:
    """Every run, the latest last. Held-out results are read for those that are not finished."""
    written = curves.steps_of(cluster)
    folders = {folder.run_id: folder for folder in run_folder.all_of(cluster.settings.state())}
    names = folders.keys() | written.keys()
    asked = {name for name in names if name not in folders or not _summary(folders[name])}
    heldout = curves.held_out_of(cluster, asked, folders)
    listed = [
        _listed(name, written.get(name, []), folders.get(name), heldout.get(name)) for name in names
    ]
    return sorted(listed, key=lambda run: (run.started_ms, run.run_id))


def _listed(
    run_id: str,
    written: list[tuple[TrainStep, int]],
    folder: RunFolder | None,
    heldout: HeldOut | None,
) -> Listed:
    steps = [step for step, _ in written]
    curve = Curve.of(run_id, steps, heldout)
    success = curve.heldout[-1][1] if curve.heldout else None
    return Listed(
        run_id,
        folder.recipe.name if folder else "",
        folder.policy_id if folder else steps[0].policy_id,
        _made_ms(folder) if folder else written[0][1],
        len(curve.steps),
        curve.steps[-1].version if curve.steps else None,
        success if heldout or not folder else _summary(folder).get("success_after"),
        _state(folder) if folder else "elsewhere",
    )


def _made_ms(folder: RunFolder) -> int:
    return int((folder.directory / run_folder.RUN_FILE).stat().st_mtime * 1000)


def _summary(folder: RunFolder) -> dict[str, Any]:
    """What was written when the run had come to its end; empty before."""
    path = folder.directory / run_folder.SUMMARY_FILE
    found: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return found


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


def plain(listed: list[Listed]) -> list[dict[str, Any]]:
    return [asdict(run) for run in listed]


def table(listed: list[Listed]) -> Table:
    shown = Table("run", "recipe", "policy", "started", "steps", "version", "held-out", "state")
    for column in (4, 5, 6):
        shown.columns[column].justify = "right"
    for run in listed:
        shown.add_row(
            run.run_id,
            run.recipe or "-",
            run.policy_id,
            (iso(run.started_ms) or "-")[:19],
            f"{run.steps:,}",
            "-" if run.version is None else str(run.version),
            "-" if run.success is None else f"{run.success:.3f}",
            run.state,
        )
    return shown
