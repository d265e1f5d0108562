"""`rollcall cancel`, `pause`, `resume`, `drain`: words on `control`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster
from compose.cli.waiting import wait_reader

if TYPE_CHECKING:
    from schemas.messages import Control

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
Name = Annotated[str, typer.Argument(help="The id of a rollout or of a group.")]
Worker = Annotated[str, typer.Argument(help="The worker's name, as `waiting` shows it.")]


def cancel(name: Name, reason: Reason = "") -> None:
    """End a rollout, or all rollouts of a group, as cancelled.

    Example: rollcall cancel lake-17 --reason "wrong task"
    """
    from consumers.history.known_names import require_known
    from schemas.messages import Control

    state = wait_reader().waiting()
    rollouts, members = {name} & state.rollouts(), state.members(name)
    if rollouts:
        _send(Control("cancel", rollout_id=name, reason=reason), name)
    if members:
        _send(Control("cancel", group_id=name, reason=reason), name)
    if rollouts or members:
        count = len(rollouts | members)
        what = f"{count} open rollouts of group" if members else "rollout"
        typer.echo(f"asked for the end of {what} {name}; `rollcall waiting` shows who is left")
    elif require_known(cluster(), name):
        typer.echo(f"every rollout of group {name} has ended already; nothing to cancel")
    else:
        typer.echo(f"rollout {name} has ended already; nothing to cancel")


def pause(reason: Reason = "") -> None:
    """Have the agents start no more requests; what was started goes on.

    Example: rollcall pause --reason "new weights are on their way"
    """
    from consumers.history.waiting import read_control
    from schemas.messages import Control

    if read_control(cluster()).paused:
        typer.echo("the agents are paused already")
        return
    _send(Control("pause", reason=reason))
    typer.echo("asked the agents to start no more requests; `rollcall resume` lets them go on")


def resume(reason: Reason = "") -> None:
    """Have the agents start requests again.

    Example: rollcall resume
    """
    from consumers.history.waiting import read_control
    from schemas.messages import Control

    if not read_control(cluster()).paused:
        typer.echo("the agents are not paused")
        return
    _send(Control("resume", reason=reason))
    typer.echo("asked the agents to start requests again")


def drain(worker: Worker, reason: Reason = "") -> None:
    """Have one worker, of whichever role, finish what is in flight and exit with code 0.

    Example: rollcall drain models-2
    """
    from consumers.history.known_names import worker_names
    from schemas.errors import Refused
    from schemas.messages import Control
    from schemas.names import hint

    names = worker_names(cluster())
    if worker not in names:
        near = hint(worker, names) if names else "no worker is up"
        msg = (
            f"no worker {worker!r} in any group, nor a trainer that has announced a version under "
            f"that name; {near}"
        )
        raise Refused(msg)
    _send(Control("drain", worker=worker, reason=reason), worker)
    typer.echo(f"asked {worker} to finish what it has in hand and to leave")


def _send(word: "Control", key: str | None = None) -> None:
    from producers.control import send_control

    here = cluster()
    send_control(here.log.publisher(), here.codec, here.topics, word, key)
