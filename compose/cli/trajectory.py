"""`rollcall trajectory`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def trajectory(
    rollout: Annotated[str, typer.Argument(help="The rollout's id.")] = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Every token, its log-probability and version.")
    ] = False,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Instead of one: two, side by side, where they part."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="All of it, as one object.")] = False,
) -> None:
    """Show what happened in one rollout, turn by turn, from its journal.

    Every try and attempt, what was ignored and why, rewards by scorer, where the time went.
    With --diff two rollouts of one group, or a fork and its parent.

    Example: rollcall trajectory 3f2a1c --tokens
    """
    from compose.trajectory import show_difference, show_trajectory
    from schemas.errors import Refused

    if bool(rollout) == (diff is not None):
        msg = f"give a rollout's id or --diff A B; found {'both' if diff else 'neither'}"
        raise Refused(msg)
    if diff is None:
        show_trajectory(cluster(), rollout, tokens=tokens, as_json=json)
    elif tokens:
        msg = "--tokens is of one rollout; leave it out with --diff"
        raise Refused(msg)
    else:
        show_difference(cluster(), *diff, as_json=json)
