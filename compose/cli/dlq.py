"""`rollcall dlq`: dead letters listed, shown, replayed, dropped, skipped."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    from compose.letters import Choice

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
Places = Annotated[
    list[str] | None,
    typer.Argument(help="PARTITION@OFFSET or PARTITION@FIRST-LAST of the dead letters."),
]
Source = Annotated[str, typer.Option(help="Only what was meant for this topic.")]
Error = Annotated[str, typer.Option(help="Only what failed with this error, such as BadMagic.")]
Since = Annotated[str, typer.Option(help="Only newer ones: 2h, 3d, or ISO 8601.")]
Every = Annotated[bool, typer.Option("--all", help="All of them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]


def list_letters(
    source: Source = "",
    error: Error = "",
    since: Since = "",
    every: Annotated[bool, typer.Option("--all", help="Replayed and dropped ones too.")] = False,
) -> None:
    """List dead letters: when, from where, who could not read it, why.

    Example: rollcall dlq list --source rollout.requests --since 2h
    """
    from compose.letters import show_list

    show_list(cluster(), _choice([], source, error, since, every=True), handled=every)


def show(
    place: Annotated[str, typer.Argument(help="PARTITION@OFFSET, as listed.")],
) -> None:
    """Show one dead letter: all headers, and its value, decoded where that is possible.

    Example: rollcall dlq show 0@12
    """
    from compose.letters import show

    show(cluster(), place)


def replay(
    places: Places = None,
    source: Source = "",
    error: Error = "",
    since: Since = "",
    every: Every = False,
    yes: Yes = False,
    again: Annotated[bool, typer.Option("--again", help="Also what was replayed.")] = False,
    rate: Annotated[float, typer.Option(min=0, help="At most so many a second; 0: all.")] = 0,
) -> None:
    """Send letters again to the topic and partition they came from, as they were.

    A dry run without --yes. What was sent is marked and not sent a second time.

    Example: rollcall dlq replay 0@12-20 --yes --rate 10
    """
    from compose.letters import replay

    choice = _choice(places, source, error, since, every=every)
    replay(cluster(), choice, yes=yes, again=again, rate=rate)


def drop(
    places: Places = None,
    source: Source = "",
    error: Error = "",
    since: Since = "",
    every: Every = False,
    yes: Yes = False,
) -> None:
    """Mark letters as dropped: they are not listed nor replayed any more.

    A dry run without --yes. Kafka cannot remove single records: the bytes stay until the
    topic's retention takes them.

    Example: rollcall dlq drop --error BadMagic --yes
    """
    from compose.letters import drop

    drop(cluster(), _choice(places, source, error, since, every=every), yes=yes)


def skip(
    group: Annotated[str, typer.Argument(help="The consumer group, such as agents.")],
    topic: Annotated[str, typer.Argument(help="What it reads, such as rollout.requests.")],
    place: Annotated[str, typer.Argument(help="PARTITION@FIRST-LAST: offsets of the topic.")],
    reason: Reason = "",
    by: Annotated[str, typer.Option(help="Who decides so; you, unless given.")] = "",
    yes: Yes = False,
) -> None:
    """Have a group pass over records that stop it, whether or not they can be read.

    A dry run without --yes. The decision and its reason are kept on dead.letters, and so is
    each record, when the group comes to it: it can be replayed. A skipped request ends as
    refused. To skip an entry of the journal, stop all agents workers first.

    Example: rollcall dlq skip agents rollout.requests 0@17-67 --reason "JSON by mistake"
    """
    from compose.skip import signature, skip

    skip(cluster(), group, topic, place, reason=reason, by=by or signature(), yes=yes)


def _choice(
    places: list[str] | None, source: str, error: str, since: str, *, every: bool
) -> "Choice":
    from compose.letters import choice_of

    return choice_of(places or [], source=source, error=error, since=since, every=every)
