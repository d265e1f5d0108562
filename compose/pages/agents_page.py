"""The text output of third-party agents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from rollcall.compose.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.compose.agents.agent_check import Played
    from rollcall.compose.agents.installation import ListedAgent


def print_agents(terminal: "Console", rows: "Sequence[ListedAgent]") -> None:
    table = Table("agent", "version", "state", "asks by", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.name, row.version, row.state, row.summary)
    terminal.print(table)


def print_played(terminal: "Console", played: "Sequence[Played]") -> None:
    """Print the requests of each trial, in order."""
    for trial in played:
        words = [f"{name} = {value!r}" for name, value in trial.config.items()]
        terminal.print(one_line(", ".join(words)), markup=False)
        threads = "" if trial.threads <= 1 else f", {trial.threads} threads before the fork"
        terminal.print(f"  imported in {trial.import_s:.1f} s{threads}")
        for call in trial.calls:
            terminal.print(f"  {one_line(call)}", markup=False)
        for request in trial.declined:
            terminal.print(f"  declined {one_line(request)}", markup=False)
        if not trial.calls:
            terminal.print("  made no model call")
        for action in trial.actions:
            terminal.print(f"  step {one_line(action)!r}", markup=False)
        if trial.result is not None:
            terminal.print(f"  result {one_line(trial.result)!r}", markup=False)
        terminal.print(f"  {'failed' if trial.wrong else 'ended well'}")
