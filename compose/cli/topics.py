"""`rollcall topics`: plan, apply, diff, stats, forget-id; and `rollcall tail`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli import connection
from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rollcall.consumers.history.reading.topic_stats import LogState

Policies = Annotated[list[str] | None, typer.Option("--policy", help="A policy id; repeatable.")]
Partitions = Annotated[
    int | None, typer.Option(min=1, help="Partitions of every topic that has more than one.")
]
Big = Annotated[bool, typer.Option("--cluster", help="Partitions and replication of a cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _provision(policies: list[str] | None, partitions: int | None, big: bool) -> tuple[Any, ...]:
    from rollcall.schemas.topics import wanted

    cluster = connection.cluster()
    topics = wanted(cluster.settings.prefix, policies or [], cluster=big, partitions=partitions)
    return cluster.admin, cluster.registry, topics


def plan(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Print the changes that `apply` would make, each topic with its full specification.

    A topic with more partitions than the manifest's default is accepted, unless --partitions asks
    for another number.
    """
    from rollcall.producers import provision

    changes = provision.plan(*_provision(policy, partitions, big), exact=partitions is not None)
    for change in changes:
        say(change.text)
    say(f"{len(changes)} changes" if changes else "nothing to change")


def apply(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Create and alter topics, and register schemas; a second call changes nothing."""
    from rollcall.producers import provision

    changes = provision.apply(*_provision(policy, partitions, big), exact=partitions is not None)
    for change in changes:
        say(change.text)
    say(f"{len(changes)} changes made" if changes else "nothing to change")


def diff(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Print the same as plan; the exit code is 1 if the cluster differs from the manifest."""
    from rollcall.producers import provision

    changes = provision.plan(*_provision(policy, partitions, big), exact=partitions is not None)
    for change in changes:
        say(change.text)
    raise typer.Exit(1 if changes else 0)


def stats(json: Json = False) -> None:
    """Count records, bytes and rates of every topic, and the lag of every group.

    Joins no group. Bytes are estimated from the last records of each partition.

    Example: rollcall topics stats --json
    """
    from functools import partial

    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.reading.topic_stats import measure

    state = measure(connection.cluster())
    emit(state.plain(), partial(print_stats, state), json=json)


def forget_id(
    schema_id: Annotated[int, typer.Argument(min=0, help="The id, as an error names it.")],
    by: Annotated[str, typer.Option(help="The name to record; default: you.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it nothing changes.")] = False,
) -> None:
    """Remove the recorded schema of an id, after a wrong registry was asked first.

    This is a dry run without --yes. The next process that reads the id records the schema that its
    registry returns, so stop all processes that use the wrong registry first. Workers that wait for
    the id go on by themselves.

    Example: rollcall topics forget-id 12 --yes
    """
    from rollcall.compose.schema_ids import SchemaIds

    here = connection.cluster()
    ids = SchemaIds(lambda: here.log, here.topics.stores)
    by = by or connection.signature()
    if not yes:
        ids.require(schema_id)
        say(f"schema id {schema_id} would be forgotten; nothing was done, --yes does it")
        return
    ids.forget(schema_id, by)
    say(f"schema id {schema_id} is forgotten; the next process that reads it records it again")


def print_stats(state: "LogState", terminal: "Console") -> None:
    """Print topics, then groups."""
    from rich.table import Table

    terminal.print(_topics_table(state))
    behind = Table("group", "topic", "lag", "by partition")
    behind.columns[2].justify = "right"
    for lag in state.lags:
        counts = "  ".join(f"{n}:{count:,}" for n, count in lag.partitions.items() if count)
        behind.add_row(lag.group, lag.topic, f"{lag.total:,}", counts)
    terminal.print(behind if state.lags else "no group has committed anything yet")
    for opened in state.held_back:
        terminal.print(str(opened), style="red", highlight=False, soft_wrap=True)
    partitions = sum(topic.partitions for topic in state.topics)
    terminal.print(
        f"{len(state.topics)} topics, {partitions:,} partitions; `rollcall runs retire` removes "
        "those of a run that is over"
    )
    terminal.print("~ estimated from the last records of each partition, before compression")


def _topics_table(state: "LogState") -> "Table":
    from rich.table import Table

    from rollcall.consumers.history.reading.times import iso
    from rollcall.consumers.history.reading.topic_stats import RECENT_S

    table = Table(
        "topic", "partitions", "records", "MB", "/s, 1 min", "/s, 1 h", "oldest", "newest"
    )
    for column in range(1, 6):
        table.columns[column].justify = "right"
    for topic in state.topics:
        rates = [f"{topic.per_s[str(seconds)]:,.1f}" if topic.per_s else "" for seconds in RECENT_S]
        times = [(iso(at) or "")[:19] if at else "" for at in (topic.oldest_ms, topic.newest_ms)]
        size = f"~{topic.estimated_bytes / 1e6:,.2f}" if topic.records else ""
        count = f"{topic.records:,}"
        table.add_row(topic.name, str(topic.partitions), count, size, *rates, *times)
    return table


Topic = Annotated[str, typer.Argument(help="With or without the prefix.")]
Decode = Annotated[
    bool, typer.Option("--decode/--raw", help="Decode values, or print them in hex.")
]
Limit = Annotated[int, typer.Option(min=0, help="Stop after this number of records; 0: never.")]
Follow = Annotated[bool, typer.Option(help="Wait for further records at the end.")]
Last = Annotated[int, typer.Option(min=0, help="Begin this number of records before the end.")]


def tail(
    topic: Topic, decode: Decode = True, limit: Limit = 0, follow: Follow = False, last: Last = 0
) -> None:
    """Print a topic's records as lines of JSON."""
    from contextlib import closing
    from itertools import islice

    import orjson

    from rollcall.compose.terminal import quiet_pipes
    from rollcall.consumers.history.reading.record_lines import (
        decoder,
        envelope,
        in_hex,
        records_of,
        topic_named,
    )
    from rollcall.schemas.untrusted_text import printable_json

    history = cluster()
    name = topic_named(history, topic)
    value_of = decoder(history, name) if decode else in_hex
    with quiet_pipes(), closing(records_of(history, name, follow=follow, last=last)) as records:
        for record in islice(records, limit or None):
            line = orjson.dumps(envelope(record) | value_of(record)).decode()
            print(printable_json(line), flush=follow)
