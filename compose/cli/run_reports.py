"""`rollcall curve`, `weights` and `balance`: reports on one run."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.extras import require
from rollcall.compose.terminal import say

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Out = Annotated[Path | None, typer.Option(help="A PNG, or a folder for a PNG and a CSV.")]
Csv = Annotated[Path | None, typer.Option(help="Write a CSV with a line for each step.")]
Tensorboard = Annotated[
    Path | None, typer.Option(help="Write event files to a folder of the run's name in this one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def curve(
    run: Run, out: Out = None, csv: Csv = None, tensorboard: Tensorboard = None, json: Json = False
) -> None:
    """Show the course of a run: reward, length, staleness, entropy, loss, held-out success.

    It is read from the log, during the run or later. For a run with several policies it shows the
    one that requests the rollouts, and the held-out success of the others; RUN-NAME shows another.

    Example: rollcall curve lake-any-start-20261121-140000-s7 --out curves
    """
    picture = out / "curve.png" if out and out.suffix != ".png" else out
    lines = csv or (out / "curve.csv" if out and out.suffix != ".png" else None)
    if picture:
        require("matplotlib")
    if tensorboard:
        require("tensorboardX")
    from rollcall.compose.conductor.curve_files import print_chart, write_files
    from rollcall.compose.runs.run_folder import find_or_none
    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.runs.run_curve import curve_of

    cluster = connection.cluster()
    folder = find_or_none(cluster.settings.state(), run)
    name, rule = (folder.name, folder.held_out_rule()) if folder else (run, None)
    others = {each.part: each.held_out_rule() for each in folder.others()} if folder else {}
    series = curve_of(cluster, name, rule, others)
    written = write_files(series, picture=picture, lines=lines, tensorboard=tensorboard)
    for path in written:
        say(f"written {path}", err=json)
    if json or not written:
        emit(series.plain(), partial(print_chart, series), json=json)


if TYPE_CHECKING:
    from rich.table import Table

    from rollcall.consumers.history.runs.balance_report import BalanceReport
    from rollcall.consumers.history.versions.kept_weights import WeightsReport


def weights(run: Run, json: Json = False) -> None:
    """List a run's weights files, the processes that need each, and those that may be removed.

    This command removes nothing; the trainer removes such files ten minutes after their
    announcement. `age` is counted from the newest announcement.

    Example: rollcall weights lake-any-start-20261121-155458-s7
    """
    from rollcall.compose.runs import run_folder
    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.versions.kept_weights import kept_weights
    from rollcall.trainer.checkpoints.checkpoint import needed_by_newest
    from rollcall.trainer.checkpoints.resume_points import resume_points

    cluster = connection.cluster()
    folder = run_folder.find(cluster.settings.state(), run)
    trained = folder.trained()
    checkpoints = folder.directory / "checkpoints"
    needed = needed_by_newest(checkpoints, trained.config.scoring_versions)
    points = resume_points(checkpoints)
    report = kept_weights(cluster, trained, folder.run(), needed, points)
    if report.files or json:
        emit(report, lambda terminal: terminal.print(_table(report)), json=json)
    if not json:
        say(
            f"{len(report.files)} files in {report.where}, {report.size_bytes / 1e6:,.1f} MB, of "
            f"which {report.may_go_bytes / 1e6:,.1f} MB may go"
        )


def _table(report: "WeightsReport") -> "Table":
    from rich.table import Table

    table = Table("version", "kind", "precision", "MB", "age", "needed by")
    for column in (0, 3, 4):
        table.columns[column].justify = "right"
    for file in report.files:
        age_s = None if file.announced_ms is None else (report.now_ms - file.announced_ms) / 1000
        table.add_row(
            str(file.version),
            file.kind if file.base < 0 else f"delta on {file.base}",
            file.precision or "-",
            f"{file.size_bytes / 1e6:,.3f}",
            "-" if age_s is None else f"{age_s:,.0f} s",
            ", ".join(file.needed_by) or "none: may be removed",
        )
    return table


Servers = Annotated[
    int | None,
    typer.Option(min=1, help="The number of model servers; default: that of the recipe."),
]
Steps = Annotated[int, typer.Option(min=1, help="The number of last steps to use.")]
BalanceJson = Annotated[Path | None, typer.Option(help="Write the figures to this file.")]


def balance(run: Run, servers: Servers = None, steps: Steps = 10, json: BalanceJson = None) -> None:
    """Show whether a run's trainer waits for rollouts, and how many model servers suit it.

    Example: rollcall balance lake-any-start-20261121-155458-s7 --servers 2
    """
    from dataclasses import asdict

    from rollcall.compose.files import refuse_no_folder, write_json
    from rollcall.compose.runs import run_folder
    from rollcall.consumers.history.runs.balance_report import balance_of

    refuse_no_folder(json)
    cluster = connection.cluster()
    folder = run_folder.find(cluster.settings.state(), run)
    there = servers or folder.recipe.processes.models
    report = balance_of(cluster, folder.trained(), there, steps)
    for line in balance_lines(report):
        say(line)
    if json is not None:
        write_json(json, asdict(report))


def balance_lines(report: "BalanceReport") -> list[str]:
    """Return three lines: the wait, the outcomes of the rollouts, the advice."""
    return [
        f"steps {report.first}..{report.last} of {report.run_id}: the trainer waited for "
        f"{report.wait_share:.1%} of its time",
        f"{report.produced} rollouts came: {report.used} used ({report.length_used:.1f} tokens in "
        f"the mean), {report.dropped} dropped ({report.length_dropped:.1f}), {report.cancelled} "
        f"cancelled ({report.length_cancelled:.1f})",
        _advice(report),
    ]


def _advice(report: "BalanceReport") -> str:
    change, servers = report.change, report.servers
    if change > 0:
        return f"add {change} to the {_servers(servers)}: the trainer lacks rollouts"
    if change < 0:
        return f"take {-change} of the {_servers(servers)} away: more is sampled than used"
    return f"leave it at {_servers(servers)}"


def _servers(count: int) -> str:
    return "one model server" if count == 1 else f"{count} model servers"
