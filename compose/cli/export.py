"""`rollcall export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.extras import require
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rich.table import Table

    from rollcall.consumers.history.replay.export import Export

Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]

SHOWN_EVERY = 1000
"""The number of records between two updates of the progress."""


@takes_range
def export(
    span: Range,
    parquet: Annotated[Path, typer.Option(help="A directory that is new or empty.")],
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Write a range of history as Parquet: trajectories, their turns, their scores.

    Joins no group, changes nothing. `rollcall query` reads what is written.

    Example: rollcall export --since 2h --parquet yesterday --rate 0
    """
    from rollcall.compose.console import PlainConsole

    require("duckdb", "pyarrow")
    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.replay.export import export as write

    with PlainConsole(stderr=True).status("reading") as status:

        def show_progress(records: int) -> None:
            if records % SHOWN_EVERY == 0:
                status.update(f"{records:,} records read")

        result = write(selection_of(cluster(), span, rate), parquet, show_progress)
    emit(result, lambda terminal: terminal.print(_table(result)), json=json, one_line=True)


def _table(result: "Export") -> "Table":
    from rich.table import Table

    table = Table("table", "rows", "MB", title=result.directory, title_justify="left")
    for column in (1, 2):
        table.columns[column].justify = "right"
    for name, rows in result.rows.items():
        table.add_row(name, f"{rows:,}", f"{result.size_bytes[name] / 1e6:,.2f}")
    return table
