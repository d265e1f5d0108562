"""A run's curve as a text chart and as files: a picture, lines, events of TensorBoard."""

import csv
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollcall.compose.conductor.live_panel import spark
from rollcall.consumers.history.runs.run_curve import HELD_OUT, RunCurve
from rollcall.schemas.errors import Refused


def write_files(
    curve: RunCurve, *, picture: Path | None, lines: Path | None, tensorboard: Path | None
) -> list[Path]:
    """Write each file that is named; return those written. Raises Refused if one cannot be."""
    written = []
    if picture:
        draw(curve, picture)
        written.append(picture)
    if lines:
        write_csv(curve, lines)
        written.append(lines)
    if tensorboard:
        written.append(write_tensorboard(curve, tensorboard))
    return written


def write_csv(curve: RunCurve, path: Path) -> None:
    """Write a line per step with a column per metric, and held-out success where measured.

    The success of other policies is in the last columns, named by policy.
    """
    names = sorted({name for step in curve.steps for name in step.metrics})
    success, *others = [_measured(each) for each in (curve.heldout, *curve.others.values())]
    beside = [f"held_out_success_{name}" for name in curve.others]
    with _writable(path).open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["step", "version", "parent", "held_out_success", *names, *beside])
        if curve.steps and curve.steps[0].parent in success:
            before = curve.steps[0].parent
            began = [each.get(before, "") for each in others]
            writer.writerow([0, before, "", success[before], *[""] * len(names), *began])
        for step in curve.steps:
            metrics = [step.metrics.get(name, "") for name in names]
            measured = success.get(step.version, "")
            metrics += [each.get(step.version, "") for each in others]
            writer.writerow([step.step, step.version, step.parent, measured, *metrics])


def _measured(curve: Iterable[tuple[int, float | None]]) -> dict[int, float | str]:
    """Return the values by version; an unmeasured one is an empty cell."""
    return {version: "" if success is None else success for version, success in curve}


def _writable(path: Path) -> Path:
    """Create the parent folders of a path; return the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise Refused(msg) from error
    return path


def draw(curve: RunCurve, path: Path) -> None:
    """Draw every series as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    series = curve.series()
    figure, axes = plt.subplots(2, -(-len(series) // 2), figsize=(15, 6), sharex=True)
    for at in axes.flat[len(series) :]:
        at.set_axis_off()
    for at, (name, points) in zip(axes.flat, series.items(), strict=False):
        held_out = name in curve.held_out()
        marker = "o" if held_out else ""
        at.plot([x for x, _ in points], [y for _, y in points], marker=marker)
        at.set_title(name)
        at.grid(alpha=0.3)
        if held_out:
            at.set_ylim(-0.05, 1.05)
    for at in axes[-1]:
        at.set_xlabel("optimiser step")
    figure.suptitle(curve.run_id)
    figure.tight_layout()
    figure.savefig(_writable(path), format="png", dpi=120)
    plt.close(figure)


def write_tensorboard(curve: RunCurve, directory: Path) -> Path:
    """Write event files to a folder of the run's name, replacing earlier ones."""
    from tensorboardX import SummaryWriter

    folder = _writable(directory / curve.run_id / "events.rollcall").parent
    for old in folder.glob("events*.rollcall"):
        old.unlink()
    writer = SummaryWriter(str(folder), filename_suffix=".rollcall")
    for step in curve.steps:
        at_s = curve.at_ms.get(step.version, 0) / 1000
        for name, value in step.metrics.items():
            writer.add_scalar(f"train/{name}", value, step.step, walltime=at_s)
    series = curve.series()
    for name in curve.held_out():
        tag = "held_out/success" + name.removeprefix(HELD_OUT).replace(", ", "_")
        for at, success in series[name]:
            writer.add_scalar(tag, success, at)
    writer.close()
    return folder


def print_chart(curve: RunCurve, terminal: Console) -> None:
    """Print each series as a line of bars between its minimum and maximum."""
    table = Table("", "first", "last", "least", "most", "", title=curve.run_id)
    for column in range(1, 5):
        table.columns[column].justify = "right"
    for name, points in curve.series().items():
        values = [value for _, value in points]
        if values:
            low, high = min(values), max(values)
            figures = (f"{value:.4g}" for value in (values[0], values[-1], low, high))
            table.add_row(name, *figures, spark(values, low, high))
        else:
            table.add_row(name, *["-"] * 4, "")
    terminal.print(table)
    for each in curve.failed:
        terminal.print(f"held-out {each}", highlight=False)
    last = curve.steps[-1] if curve.steps else None
    words = f"{len(curve.steps):,} steps"
    words += f" to version {last.version}" if last else ""
    words += f", {curve.abandoned:,} abandoned at restarts" if curve.abandoned else ""
    terminal.print(words)
