"""`rollcall export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster
from compose.extras import require
from compose.ranges import Range, Rate, takes_range

if TYPE_CHECKING:
    pass

Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]


@takes_range
def export(
    chosen: Range,
    parquet: Annotated[Path, typer.Option(help="A directory that is new or empty.")],
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Write a range of history as Parquet: trajectories, their turns, their scores.

    Joins no group, changes nothing. `rollcall query` reads what is written.

    Example: rollcall export --since 2h --parquet yesterday --rate 0
    """
    from rich.console import Console

    from compose.terminal import emit

    require("duckdb", "pyarrow")
    from compose.archive import export as write

    terminal = Console(stderr=True)
    with terminal.status("reading") as status:

        def told(done: int) -> None:
            if done % 1000 == 0:
                status.update(f"{done:,} records read")

        found = write(cluster(), chosen, parquet, rate=rate, progress=told)
    emit(
        found.plain(),
        lambda terminal: terminal.print(found.table()),
        json=json,
        one_line=True,
    )
