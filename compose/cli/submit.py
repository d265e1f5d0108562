"""`rollcall submit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def submit(
    source: Annotated[str, typer.Argument(help="A JSON Lines file, or - for standard input.")] = "",
    dataset: Annotated[
        str, typer.Option(help="A reasoning-gym data set instead of a file, such as chain_sum.")
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Entries of the data set.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    policy: Annotated[str, typer.Option(help="The policy, where a line names none.")] = "policy",
    agent: Annotated[str, typer.Option(help="The program, where a line names none.")] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Under new ids: run what was run before once more.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Watch until all have been scored.")] = False,
    timeout_s: Annotated[float, typer.Option(help="How long to wait.")] = 600.0,
) -> None:
    """Publish rollout requests, one JSON object a line.

    An id that was asked for before is refused as `repeated`: a file may be submitted twice.
    """
    from compose.submission import submit as publish

    publish(
        cluster(),
        source,
        dataset=dataset,
        count=count,
        group_size=group_size,
        policy_id=policy,
        agent=agent,
        wait=wait,
        timeout_s=timeout_s,
        again=again,
    )
