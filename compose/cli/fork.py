"""`rollcall fork`."""

from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say

Rollout = Annotated[str, typer.Argument(help="The id of the rollout to fork.")]
At = Annotated[int, typer.Option(min=0, help="The first turn that is live; from 0 on.")]
Policy = Annotated[
    str, typer.Option(help="Another policy to go on with; it must share its tokens.")
]
Seed = Annotated[str, typer.Option(help="Of sampling; left out, each fork samples anew.")]
Count = Annotated[int, typer.Option("--n", min=1, help="So many forks, as one group.")]
Wait = Annotated[bool, typer.Option("--wait", help="Watch until all are scored.")]
Timeout = Annotated[float, typer.Option(help="How long to wait.")]


def fork(
    rollout: Rollout,
    at: At,
    policy: Policy = "",
    seed: Seed = "",
    n: Count = 1,
    wait: Wait = False,
    timeout_s: Timeout = 600.0,
) -> None:
    """Publish a rollout whose first turns are those of a recorded one and whose rest is live.

    The recorded answers are given again and its environments stepped again; the live calls go
    on from the recorded tokens. Forks are of purpose "replay": nothing trains on them. At turn
    0 with the parent's own seed, the same weights give the same first answer. With --n, the
    seed of fork K is SEED-K.

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
