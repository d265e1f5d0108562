"""`rollcall query`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import settings
from compose.extras import require

if TYPE_CHECKING:
    pass


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over trajectories, turns, scores.")],
    directory: Annotated[
        list[Path] | None,
        typer.Option("--dir", help="What export or the archive wrote; repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="With a line of names.")] = False,
) -> None:
    """Ask the exported tables in SQL (DuckDB). Reads only those directories, writes nothing.

    Without --dir: what `worker archive` writes when it is told no directory.

    Example: rollcall query "select purpose, count(*), avg(total) from trajectories group by 1"
    """
    import sys

    from compose.terminal import page, quiet_pipes
    from schemas.errors import Refused

    if json and csv:
        msg = "--json and --csv are two ways to print one answer; give one of them"
        raise Refused(msg)
    require("duckdb", "pyarrow")
    from compose import query as queries

    with queries.tables(directory or [settings().archive()]) as tables:
        answer = tables.ask(sql)
        if json or csv:
            with quiet_pipes():
                (queries.print_json if json else queries.print_csv)(answer, sys.stdout)
        else:
            with page() as terminal:
                queries.print_table(answer, terminal)
