"""`rollcall waiting`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def waiting(
    rollout: Annotated[str, typer.Option(help="Only this rollout.")] = "",
    group: Annotated[str, typer.Option(help="Only this group, its scored members too.")] = "",
    older_than: Annotated[str, typer.Option(help="Only waits that long, such as 5m.")] = "",
    json: Annotated[bool, typer.Option("--json", help="All of it, as one object.")] = False,
) -> None:
    """Say what every open rollout waits for, on whom, since when, until when.

    From the log alone, so also while every worker is down.

    Example: rollcall waiting --older-than 5m
    """
    from compose.waiting import waiting as print_waiting
    from consumers.history.times import seconds_of

    print_waiting(
        cluster(),
        rollout_id=rollout,
        group_id=group,
        older_than_s=seconds_of(older_than) if older_than else 0.0,
        as_json=json,
    )
