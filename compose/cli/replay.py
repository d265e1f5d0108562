"""`rollcall replay`."""

from typing import Annotated

import typer

from compose.cli.connection import cluster
from compose.cli.range_options import Rate, selection_of, takes_range
from consumers.history.ranges import Range


@takes_range
def replay(
    span: Range,
    to: Annotated[str, typer.Option(help="rollout.requests, trajectories, or a new file *.jsonl.")],
    name: Annotated[
        str, typer.Option(help="Of the replay; the same name asks for the same rollouts.")
    ] = "",
    of: Annotated[
        str, typer.Option(help="What the range names: requests, or trajectories' requests.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this it is only shown.")
    ] = False,
    rate: Rate = None,
) -> None:
    """Publish requests again under new ids, or trajectories as they are.

    A dry run without --yes. A replay of the same name asks for nothing twice.

    Example: rollcall replay --since 2h --to rollout.requests --name again --yes
    """
    from compose.replay import lines
    from compose.replay import replay as replay_range

    here = cluster()
    selection = selection_of(here, span, rate)
    found = replay_range(here, selection, to, name=name, of=of, yes=yes)
    for line in lines(found, yes=yes):
        typer.echo(line)
