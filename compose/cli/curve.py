"""`rollcall curve`."""

from functools import partial
from pathlib import Path
from typing import Annotated

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
