"""`rollcall query` and `rollcall export`: history as tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rollcall.compose.cli.connection import cluster, settings
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.extras import require
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rollcall.consumers.history.replay.export import Export
    from rollcall.consumers.tables.query import QueryResult

TABLE_ROWS = 100
"""The most rows of a table in a terminal."""


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over trajectories, turns, scores.")],
    directory: Annotated[
        list[Path] | None,
        typer.Option("--dir", help="A directory of `export` or `worker archive`; repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
) -> None:
    """Query the exported tables with SQL (DuckDB). Reads only those directories, writes nothing.

    Without --dir it reads the default directory of `worker archive`.

    Example: rollcall query "select purpose, count(*), avg(total) from trajectories group by 1"
    """
    import sys

    from rollcall.compose.terminal import page, quiet_pipes
    from rollcall.schemas.errors import Refused

    if json and csv:
        msg = "--json and --csv exclude each other; give one of them"
        raise Refused(msg)
    require("duckdb", "pyarrow")
    from rollcall.consumers.tables.query import open_tables

    with open_tables(directory or [settings().archive()]) as tables:
        result = tables.ask(sql)
        if json or csv:
            with quiet_pipes():
                (print_json if json else print_csv)(result, sys.stdout)
        else:
            with page() as terminal:
                print_table(result, terminal)


def print_table(result: "QueryResult", terminal: "Console") -> None:
    """Print the first rows as a table, and the number of further ones."""
    from rich.table import Table

    from rollcall.compose.console import safe

    table = Table(*result.columns)
    more = 0
    for number, row in enumerate(result.rows):
        if number < TABLE_ROWS:
            table.add_row(*(safe("" if value is None else str(value)) for value in row))
        else:
            more += 1
    terminal.print(table)
    if more:
        terminal.print(f"and {more:,} more rows; --csv or --json prints all", highlight=False)


def print_json(result: "QueryResult", out: TextIO) -> None:
    """Print one object per line."""
    import json

    for row in result.rows:
        values = {name: _plain(value) for name, value in zip(result.columns, row, strict=True)}
        out.write(json.dumps(values, default=str, ensure_ascii=False) + "\n")


def print_csv(result: "QueryResult", out: TextIO) -> None:
    """Print a line of names, then one per row."""
    import csv

    writer = csv.writer(out)
    writer.writerow(result.columns)
    writer.writerows(result.rows)


def _plain(value: Any) -> Any:
    """Convert a value for JSON, which has no infinity and whose names are text."""
    import math

    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

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

    Joins no group and changes nothing in the log. `rollcall query` reads the files.

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
