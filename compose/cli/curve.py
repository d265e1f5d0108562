"""`rollcall curve`."""

from pathlib import Path
from typing import Annotated

import typer

from compose.cli.connection import cluster
from compose.extras import require

Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]


def curve(
    run: Annotated[str, typer.Argument(help="A run's id or folder.")],
    out: Annotated[
        Path | None, typer.Option(help="A PNG, or a folder for a PNG and a CSV.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="A line for each step.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Event files go into a folder of the run's name.")
    ] = None,
    json: Json = False,
) -> None:
    """Show how a run went: reward, length, staleness, entropy, loss, held-out success.

    From the log alone, while the run goes on or a week later.

    Example: rollcall curve lake-any-start-20261121-140000-s7 --out curves
    """
    from functools import partial

    from compose.terminal import emit

    picture = out / "curve.png" if out and out.suffix != ".png" else out
    lines = csv or (out / "curve.csv" if out and out.suffix != ".png" else None)
    if picture:
        require("matplotlib")
    if tensorboard:
        require("tensorboardX")
    from compose import curves

    found = curves.read(cluster(), run)
    written = []
    if picture:
        curves.draw(found, picture)
        written.append(picture)
    if lines:
        curves.write_csv(found, lines)
        written.append(lines)
    if tensorboard:
        written.append(curves.write_tensorboard(found, tensorboard))
    for path in written:
        typer.echo(f"written {path}", err=json)
    if json or not written:
        emit(found.plain(), partial(curves.print_chart, found), json=json)
