"""`rollcall scorings`: list the scorings, and retire one."""

from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]


def list_scorings() -> None:
    """List every scoring: how far behind it is, and whether it owes scores.

    Example: rollcall scorings list
    """
    from rich.table import Table

    from rollcall.compose.terminal import page
    from rollcall.consumers.history.replay.scorings import scorings

    table = Table("scoring", "trajectories behind", "owes scores")
    for state in scorings(cluster()):
        owes = "yes" if state.retired is None else f"no, retired {state.retired}"
        table.add_row(state.scoring_id, f"{state.behind:,}", owes)
    with page() as terminal:
        terminal.print(table)


def retire(
    scoring: Annotated[str, typer.Argument(help="The scoring's id.")], reason: Reason = ""
) -> None:
    """Let a scoring that nobody runs any more owe no scores; `verify` does not ask for them.

    Starting a worker for it again takes that back: it goes on where it was left.

    Example: rollcall scorings retire tried-once --reason "only a try"
    """
    from rollcall.consumers.history.replay.scorings import retire_scoring

    state = retire_scoring(cluster(), scoring, reason)
    say(f"{state.scoring_id} owes no scores any more; it was {state.behind:,} behind")
