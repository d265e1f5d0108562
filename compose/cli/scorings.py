"""`rollcall scorings`: who owes a score of every trajectory."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]


def list_scorings() -> None:
    """List every scoring: how far behind it is, and whether it owes scores.

    Example: rollcall scorings list
    """
    from compose import scorings
    from compose.terminal import page

    with page() as terminal:
        terminal.print(scorings.table(scorings.scorings(cluster())))


def retire(
    scoring: Annotated[str, typer.Argument(help="The scoring's id.")], reason: Reason = ""
) -> None:
    """Let a scoring that nobody runs any more owe no scores; `verify` does not ask for them.

    Starting a worker for it again takes that back: it goes on where it was left.

    Example: rollcall scorings retire tried-once --reason "only a try"
    """
    from compose.scorings import retire

    found = retire(cluster(), scoring, reason)
    typer.echo(f"{found.scoring_id} owes no scores any more; it was {found.behind:,} behind")
