"""`rollcall replay` and `rollcall fork`: recorded requests and rollouts once more."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.cli.connection import cluster
from rollcall.compose.cli.range_options import Rate, selection_of, takes_range
from rollcall.compose.terminal import say
from rollcall.consumers.history.reading.ranges import Range

if TYPE_CHECKING:
    from rollcall.consumers.history.replay.range_replay import RangeReplay

To = Annotated[str, typer.Option(help="rollout.requests, trajectories, or a new file *.jsonl.")]
Name = Annotated[str, typer.Option(help="The replay's name, which determines the new ids.")]
Of = Annotated[str, typer.Option(help="The range's topic: requests, or trajectories.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it nothing changes.")]


@takes_range
def replay(
    span: Range, to: To, name: Name = "", of: Of = "", yes: Yes = False, rate: Rate = None
) -> None:
    """Publish requests again under new ids, or trajectories unchanged.

    This is a dry run without --yes. A second replay with the same name publishes nothing twice.

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
        yield f"{result.before:,} skipped: this replay published them before"
    if result.own:
        yield f"{result.own:,} skipped: this replay made them itself"
    if not yes:
        yield "nothing was written; --yes does it"


Rollout = Annotated[str, typer.Argument(help="The id of the rollout to fork.")]
At = Annotated[int, typer.Option(min=0, help="The first live turn, counted from 0.")]
Policy = Annotated[
    str, typer.Option(help="Another policy for the live turns; it must have the same tokens.")
]
Seed = Annotated[str, typer.Option(help="The seed of sampling; default: a new one for each fork.")]
Count = Annotated[int, typer.Option("--n", min=1, help="The number of forks, as one group.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all are scored.")]
Timeout = Annotated[float, typer.Option(help="The longest wait.")]


def fork(
    rollout: Rollout,
    at: At,
    policy: Policy = "",
    seed: Seed = "",
    n: Count = 1,
    wait: Wait = False,
    timeout_s: Timeout = 600.0,
) -> None:
    """Publish a rollout that repeats the first turns of a recorded one and then goes on live.

    The recorded answers are repeated, and the environment is stepped again; live calls continue
    from the recorded tokens. Forks have the purpose "replay", so they are not trained on. At turn
    0 with the parent's seed, the same weights give the same first answer. With --n, the seed of
    fork K is SEED-K.

    Example: rollcall fork 3f2a1c --at 2 --n 8 --wait
    """
    from rollcall.compose.cluster import require_topics
    from rollcall.compose.request_checks import RequestChecks
    from rollcall.compose.submission import submit_all
    from rollcall.consumers.history.reading.local_programs import watched_world
    from rollcall.consumers.history.rollouts import fork_request

    here = cluster()
    require_topics(here)
    world = watched_world(here.settings.agents.program_timeout_s)
    parent = fork_request.parent_of(here, rollout, world)
    request = fork_request.fork_request(parent, at, policy_id=policy, seed=seed)
    requests, checks = list(fork_request.fork_requests(request, n)), RequestChecks(here)
    for each in requests:
        checks.check(each)
    say(
        f"fork of {rollout} at turn {at} (its position {request.parent_position}): "
        f"{at} turn{'' if at == 1 else 's'} from the record; its own seed is "
        f"{parent.request.seed_key!r}"
    )
    submit_all(here, requests, wait=wait, timeout_s=timeout_s)
