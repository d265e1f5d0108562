"""The text output of checked tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from rollcall.compose.console import safe
from rollcall.compose.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.sandbox.tasks.listing import CheckedTask

SHOWN = 16
"""The number of digits of a digest that are shown."""


def print_tasks(terminal: "Console", rows: "Sequence[CheckedTask]") -> None:
    """Print valid tasks as a table, and a line for each fault of the others."""
    if good := [row for row in rows if not row.faults]:
        terminal.print(_table(good))
    for row in rows:
        for fault in row.faults:
            terminal.print(one_line(f"{row.directory}/{fault}"), markup=False, soft_wrap=True)
    bad = sum(bool(row.faults) for row in rows)
    if bad:
        terminal.print(f"{bad:,} of {len(rows):,} tasks cannot be used")


def _table(rows: "Sequence[CheckedTask]") -> Table:
    heads = "task", "digest", "parser", "to mend", "to keep", "proven"
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        counts = f"{row.fail_to_pass:,}", f"{row.pass_to_pass:,}"
        name = safe(one_line(row.directory))
        proven = "" if row.proven is None else "yes" if row.proven else "no"
        table.add_row(name, row.digest[:SHOWN], row.parser, *counts, proven)
    return table
