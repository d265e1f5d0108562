"""Commands that look at what goes on and steer it: waiting, cancel, pause, resume, drain, dlq."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from compose.letters import Choice

dlq_app = typer.Typer(no_args_is_help=True, help="Dead letters: what nobody could read.")

scorings_app = typer.Typer(no_args_is_help=True, help="Who owes a score of every trajectory.")

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


def add_to(app: typer.Typer, cluster: "Callable[[], Cluster]") -> None:
    """Register these commands; `cluster` connects when one of them runs."""
    app.add_typer(dlq_app, name="dlq")
    app.add_typer(scorings_app, name="scorings")

    @app.command()
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

    @app.command()
    def cancel(
        name: Annotated[str, typer.Argument(help="The id of a rollout or of a group.")],
        reason: Reason = "",
    ) -> None:
        """End a rollout, or all rollouts of a group, as cancelled.

        Example: rollcall cancel lake-17 --reason "wrong task"
        """
        from compose.steer import cancel as ask

        typer.echo(ask(cluster(), name, reason))

    @app.command()
    def pause(reason: Reason = "") -> None:
        """Have the agents start no more requests; what was started goes on.

        Example: rollcall pause --reason "new weights are on their way"
        """
        from compose.steer import pause as ask

        typer.echo(ask(cluster(), reason))

    @app.command()
    def resume(reason: Reason = "") -> None:
        """Have the agents start requests again.

        Example: rollcall resume
        """
        from compose.steer import resume as ask

        typer.echo(ask(cluster(), reason))

    @app.command()
    def drain(
        worker: Annotated[str, typer.Argument(help="The worker's name, as `waiting` shows it.")],
        reason: Reason = "",
    ) -> None:
        """Have one worker, of whichever role, finish what is in flight and exit with code 0.

        Example: rollcall drain models-2
        """
        from compose.steer import drain as ask

        typer.echo(ask(cluster(), worker, reason))

    @scorings_app.command("list")
    def scorings_list() -> None:
        """List every scoring: how far behind it is, and whether it owes scores.

        Example: rollcall scorings list
        """
        from compose import scorings
        from compose.look import page

        with page() as terminal:
            terminal.print(scorings.table(scorings.scorings(cluster())))

    @scorings_app.command("retire")
    def scorings_retire(
        scoring: Annotated[str, typer.Argument(help="The scoring's id.")], reason: Reason = ""
    ) -> None:
        """Let a scoring that nobody runs any more owe no scores; `verify` does not ask for them.

        Starting a worker for it again takes that back: it goes on where it was left.

        Example: rollcall scorings retire tried-once --reason "only a try"
        """
        from compose.scorings import retire

        found = retire(cluster(), scoring, reason)
        typer.echo(f"{found.scoring_id} owes no scores any more; it was {found.behind:,} behind")

    @dlq_app.command("list")
    def dlq_list(
        source: Source = "",
        error: Error = "",
        since: Since = "",
        every: Annotated[
            bool, typer.Option("--all", help="Replayed and dropped ones too.")
        ] = False,
    ) -> None:
        """List dead letters: when, from where, who could not read it, why.

        Example: rollcall dlq list --source rollout.requests --since 2h
        """
        from compose.letters import show_list

        show_list(cluster(), _choice([], source, error, since, every=True), handled=every)

    @dlq_app.command("show")
    def dlq_show(
        place: Annotated[str, typer.Argument(help="PARTITION@OFFSET, as listed.")],
    ) -> None:
        """Show one dead letter: all headers, and its value, decoded where that is possible.

        Example: rollcall dlq show 0@12
        """
        from compose.letters import show

        show(cluster(), place)

    @dlq_app.command("replay")
    def dlq_replay(
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

    @dlq_app.command("drop")
    def dlq_drop(
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

    @dlq_app.command("skip")
    def dlq_skip(
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
