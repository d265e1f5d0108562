"""`rollcall weights`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from rollcall.consumers.history.versions.kept_weights import WeightsReport

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


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
