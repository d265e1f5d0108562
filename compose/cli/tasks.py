"""`rollcall tasks`: directories of tasks, checked, imported, built."""

from pathlib import Path
from typing import Annotated

import typer

Directories = Annotated[
    list[Path], typer.Argument(help="Directories of tasks, or folders that hold some.")
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def check(directories: Directories, json: Json = False) -> None:
    """Say of every task what is missing or wrong, by file and key, or what it is named by.

    Exit code 1 where something is.

    Example: rollcall tasks check .rollcall/tasks
    """
    from compose.pages.tasks_page import print_tasks
    from compose.terminal import emit
    from sandbox.tasks.listing import checked_tasks

    rows = checked_tasks(directories)
    emit(rows, lambda terminal: print_tasks(terminal, rows), json=json)
    if any(row.faults for row in rows):
        raise typer.Exit(1)
