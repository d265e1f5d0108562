"""`rollcall replay`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.terminal import say
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rollcall.consumers.history.replay.range_replay import RangeReplay

To = Annotated[str, typer.Option(help="rollout.requests, trajectories, or a new file *.jsonl.")]
Name = Annotated[str, typer.Option(help="Of the replay; the same name asks for the same rollouts.")]
Of = Annotated[str, typer.Option(help="What the range names: requests, or trajectories' requests.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]


@takes_range
def replay(
    span: Range, to: To, name: Name = "", of: Of = "", yes: Yes = False, rate: Rate = None
) -> None:
    """Publish requests again under new ids, or trajectories as they are.

    A dry run without --yes. A replay of the same name asks for nothing twice.

    Example: rollcall replay --since 2h --to rollout.requests --name again --yes
    """
    from rollcall.compose.request_checks import RequestChecks
    from rollcall.consumers.history.replay.range_replay import replay as replay_range

    cluster = connection.cluster()
    selection, check = selection_of(cluster, span, rate), RequestChecks(cluster).check
    result = replay_range(selection, to, check, name=name, of=of, yes=yes)
    for line in replay_lines(result, yes=yes):
        say(line)


def replay_lines(result: "RangeReplay", *, yes: bool) -> Iterator[str]:
    """Yield what was done, or would be done, as text."""
    done = "written" if yes else "would be written"
    yield f"{result.written:,} {result.what} {done} to {result.to}"
    for (run_id, policy_id, purpose), count in sorted(result.kinds.items()):
        yield f"  {count:,} of run {run_id or '(none)'}, policy {policy_id}, purpose {purpose}"
    for old, new in result.first:
        yield f"  {old} -> {new}" if old != new else f"  {old}"
    if result.written > len(result.first):
        yield f"  and {result.written - len(result.first):,} more"
    if result.before:
        yield f"{result.before:,} passed over: this replay asked for them before"
    if result.own:
        yield f"{result.own:,} passed over: this replay made them itself"
    if not yes:
        yield "nothing was written; --yes does it"
