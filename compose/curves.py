"""The way of a run, from `train.steps` and the held-out part of `trajectories.scored` alone.

A trainer that came back may have taken steps again from an older checkpoint; what the newest
version descends from is the run, the rest is counted as abandoned.
"""

import csv
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from compose.conductor.live_panel import spark
from compose.runs import run_folder
from consumers.heldout import MARK, HeldOut, HeldOutPlan
from consumers.history.ranges import Range, extent_of
from consumers.log.reading import read_between, to_the_end
from schemas.errors import Refused, WireError
from schemas.messages import RolloutRequest, ScoredTrajectory, Task, TrainStep
from schemas.names import unknown
from trainer.branches import descent

if TYPE_CHECKING:
    from compose.cluster import Cluster

SERIES: Mapping[str, str] = {
    "reward": "reward_mean",
    "length": "length_mean",
    "staleness": "staleness_mean",
    "entropy": "entropy",
    "loss": "loss",
}
"""What is shown, by the metric of a step that it is."""
HELD_OUT = "held-out success"


@dataclass
class Curve:
    """One run: its steps in order, and what its held-out evaluations gave."""

    run_id: str
    steps: list[TrainStep]
    heldout: list[tuple[int, float]]
    """(version, success) of every complete evaluation."""
    at_ms: dict[int, int] = field(default_factory=dict)
    """When each version's step was written, where that is known."""
    abandoned: int = 0

    @classmethod
    def of(
        cls,
        run_id: str,
        steps: Iterable[TrainStep],
        heldout: HeldOut | None,
        at_ms: Mapping[int, int] | None = None,
    ) -> "Curve":
        """From every step that was written, those of abandoned branches among them."""
        by_version = {step.version: step for step in steps}
        kept = list(descent(by_version))[::-1]
        abandoned = len(by_version) - len(kept)
        measured = heldout.curve() if heldout else []
        return cls(run_id, kept, measured, dict(at_ms or {}), abandoned)

    def series(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) of everything that is shown; a version's held-out success at its step."""
        at_step = {step.version: step.step for step in self.steps}
        found = {
            name: [(s.step, s.metrics[metric]) for s in self.steps if metric in s.metrics]
            for name, metric in SERIES.items()
        }
        first = self.steps[0].parent if self.steps else None
        found[HELD_OUT] = [
            (at_step.get(version, 0), success)
            for version, success in self.heldout
            if version in at_step or not self.steps or version == first
        ]
        return found

    def plain(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "steps": [
                {
                    "step": step.step,
                    "version": step.version,
                    "parent": step.parent,
                    "at_ms": self.at_ms.get(step.version),
                    "metrics": step.metrics,
                }
                for step in self.steps
            ],
            "held_out": [
                {"version": version, "success": success} for version, success in self.heldout
            ],
            "abandoned_steps": self.abandoned,
        }


def read(cluster: "Cluster", name: str) -> Curve:
    """The curve of a run by id or folder; raises Refused for one of which there is no record."""
    folder = folder_of(cluster, name)
    run_id = folder.run_id if folder else name
    steps = steps_of(cluster)
    folders = {run_id: folder} if folder else {}
    heldout = held_out_of(cluster, [run_id], folders)[run_id]
    if run_id not in steps and not heldout.results:
        if folder:
            msg = f"run {run_id!r} has no step and no held-out result in the log yet"
            raise Refused(msg)
        raise unknown("run", name, sorted(steps))
    written = steps.get(run_id, [])
    at_ms = {step.version: at for step, at in written}
    return Curve.of(run_id, [step for step, _ in written], heldout, at_ms)


def folder_of(cluster: "Cluster", name: str) -> run_folder.RunFolder | None:
    """The folder of a run by id or path; None where there is none here."""
    with suppress(Refused):  # of a run from elsewhere there is only the log
        return run_folder.find(cluster.settings.state(), name)
    return None


def steps_of(cluster: "Cluster") -> dict[str, list[tuple[TrainStep, int]]]:
    """Every optimiser step by run, and when it was written."""
    found: dict[str, list[tuple[TrainStep, int]]] = {}
    with closing(cluster.log.reader([cluster.topics.train_steps])) as reader:
        for record in to_the_end(reader):
            with suppress(WireError):
                step = cluster.codec.decode(record.value, TrainStep)
                found.setdefault(step.run_id, []).append((step, record.timestamp_ms))
    return found


def held_out_of(
    cluster: "Cluster",
    run_ids: Iterable[str],
    folders: Mapping[str, run_folder.RunFolder],
) -> dict[str, HeldOut]:
    """The held-out results of some runs; only they are decoded, for their keys name them."""
    found = {
        name: HeldOut(folders[name].heldout() if name in folders else _plan(name))
        for name in run_ids
    }
    keys = tuple(f"{name}{MARK}".encode() for name in found)
    if not keys:
        return found
    extent = extent_of(cluster.log, cluster.topics.scored, Range())
    for record in chain.from_iterable(read_between(cluster.log, *extent)):
        if (record.key or b"").startswith(keys):
            with suppress(WireError):
                scored = cluster.codec.decode(record.value, ScoredTrajectory)
                _take(found, folders, scored)
    return found


def _take(
    found: Mapping[str, HeldOut],
    folders: Mapping[str, run_folder.RunFolder],
    scored: ScoredTrajectory,
) -> None:
    """Note a result under the run's scoring id; without a folder, under whichever there is."""
    request = scored.trajectory.request
    if request is None or request.run_id not in found:
        return
    heldout, folder = found[request.run_id], folders.get(request.run_id)
    if folder is not None and folder.recipe.scoring_id != scored.scoring_id:
        return
    if folder is None and not heldout.plan.seeds[1]:
        heldout.plan = _plan(request.run_id, request.group_size)
    heldout.take(scored)


def _plan(run_id: str, seeds: int = 0) -> HeldOutPlan:
    """What is known of a run's evaluation without its recipe: success is a reward of 1."""
    return HeldOutPlan(RolloutRequest("", Task(), run_id=run_id), (0, seeds), 0, 1.0, 2.0)


# Out


def print_chart(curve: Curve, terminal: Console) -> None:
    """Each series as a line of bars between its least and its most."""
    shown = Table("", "first", "last", "least", "most", "", title=curve.run_id)
    for column in range(1, 5):
        shown.columns[column].justify = "right"
    for name, points in curve.series().items():
        values = [value for _, value in points]
        if values:
            low, high = min(values), max(values)
            figures = (f"{value:.4g}" for value in (values[0], values[-1], low, high))
            shown.add_row(name, *figures, spark(values, low, high))
        else:
            shown.add_row(name, *["-"] * 4, "")
    terminal.print(shown)
    last = curve.steps[-1] if curve.steps else None
    words = f"{len(curve.steps):,} steps"
    words += f" to version {last.version}" if last else ""
    words += f", {curve.abandoned:,} abandoned at restarts" if curve.abandoned else ""
    terminal.print(words)


def write_csv(curve: Curve, path: Path) -> None:
    """One line a step, every metric a column; held-out success where it was measured."""
    names = sorted({name for step in curve.steps for name in step.metrics})
    success = dict(curve.heldout)
    with _writable(path).open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["step", "version", "parent", "held_out_success", *names])
        if curve.steps and curve.steps[0].parent in success:
            before = curve.steps[0].parent
            writer.writerow([0, before, "", success[before], *[""] * len(names)])
        for step in curve.steps:
            metrics = [step.metrics.get(name, "") for name in names]
            measured = success.get(step.version, "")
            writer.writerow([step.step, step.version, step.parent, measured, *metrics])


def _writable(path: Path) -> Path:
    """The path itself, below folders that are there now."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise Refused(msg) from error
    return path


def draw(curve: Curve, path: Path) -> None:
    """Every series as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 6), sharex=True)
    for at, (name, points) in zip(axes.flat, curve.series().items(), strict=True):
        marker = "o" if name == HELD_OUT else ""
        at.plot([x for x, _ in points], [y for _, y in points], marker=marker)
        at.set_title(name)
        at.grid(alpha=0.3)
        if name == HELD_OUT:
            at.set_ylim(-0.05, 1.05)
    for at in axes[-1]:
        at.set_xlabel("optimiser step")
    figure.suptitle(curve.run_id)
    figure.tight_layout()
    figure.savefig(_writable(path), format="png", dpi=120)
    plt.close(figure)


def write_tensorboard(curve: Curve, directory: Path) -> Path:
    """Event files in a folder of the run's name, instead of those of the last time."""
    from tensorboardX import SummaryWriter

    folder = _writable(directory / curve.run_id / "events.rollcall").parent
    for old in folder.glob("events*.rollcall"):
        old.unlink()
    writer = SummaryWriter(str(folder), filename_suffix=".rollcall")
    for step in curve.steps:
        at_s = curve.at_ms.get(step.version, 0) / 1000
        for name, value in step.metrics.items():
            writer.add_scalar(f"train/{name}", value, step.step, walltime=at_s)
    for at, success in curve.series()[HELD_OUT]:
        writer.add_scalar("held_out/success", success, at)
    writer.close()
    return folder
