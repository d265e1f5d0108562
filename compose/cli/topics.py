"""`rollcall topics`: plan, apply, diff, stats."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass

Policies = Annotated[list[str] | None, typer.Option("--policy", help="A policy id; repeatable.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions of every topic above one.")]
Big = Annotated[bool, typer.Option("--cluster", help="Counts and replication for a cluster.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]


def _provision(policies: list[str] | None, partitions: int | None, big: bool) -> tuple[Any, ...]:
    from schemas.topics import wanted

    here = cluster()
    topics = wanted(here.settings.prefix, policies or [], cluster=big, partitions=partitions)
    return here.admin, here.registry, topics


def plan(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Print what `apply` would change."""
    from producers import provision

    changes = provision.plan(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    typer.echo(f"{len(changes)} changes" if changes else "nothing to change")


def apply(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Create and alter topics, register schemas; changes nothing the second time."""
    from producers import provision

    changes = provision.apply(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    typer.echo(f"{len(changes)} changes made" if changes else "nothing to change")


def diff(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Like plan, with exit code 1 where the cluster differs from the manifest."""
    from producers import provision

    changes = provision.plan(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    raise typer.Exit(1 if changes else 0)


def stats(json: Json = False) -> None:
    """Count records, bytes and rates of every topic, and the lag of every group.

    Joins no group. Bytes are estimated from the last records of each partition.

    Example: rollcall topics stats --json
    """
    from functools import partial

    from compose import stats
    from compose.terminal import emit

    state = stats.measure(cluster())
    emit(state.plain(), partial(stats.show, state), json=json)
