"""`rollcall cancel`, `pause`, `resume`, `drain`: words on `control`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]


def cancel(
    name: Annotated[str, typer.Argument(help="The id of a rollout or of a group.")],
    reason: Reason = "",
) -> None:
    """End a rollout, or all rollouts of a group, as cancelled.

    Example: rollcall cancel lake-17 --reason "wrong task"
    """
    from compose.steer import cancel as ask

    typer.echo(ask(cluster(), name, reason))


def pause(reason: Reason = "") -> None:
    """Have the agents start no more requests; what was started goes on.

    Example: rollcall pause --reason "new weights are on their way"
    """
    from compose.steer import pause as ask

    typer.echo(ask(cluster(), reason))


def resume(reason: Reason = "") -> None:
    """Have the agents start requests again.

    Example: rollcall resume
    """
    from compose.steer import resume as ask

    typer.echo(ask(cluster(), reason))


def drain(
    worker: Annotated[str, typer.Argument(help="The worker's name, as `waiting` shows it.")],
    reason: Reason = "",
) -> None:
    """Have one worker, of whichever role, finish what is in flight and exit with code 0.

    Example: rollcall drain models-2
    """
    from compose.steer import drain as ask

    typer.echo(ask(cluster(), worker, reason))
