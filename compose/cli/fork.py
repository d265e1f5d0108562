"""`rollcall fork`."""

from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli.connection import cluster

if TYPE_CHECKING:
    pass


def fork(
    rollout: Annotated[str, typer.Argument(help="The id of the rollout to fork.")],
    at: Annotated[int, typer.Option(min=0, help="The first turn that is live; from 0 on.")],
    policy: Annotated[
        str, typer.Option(help="Another policy to go on with; it must share its tokens.")
    ] = "",
    seed: Annotated[str, typer.Option(help="Of sampling; left out, each fork samples anew.")] = "",
    n: Annotated[int, typer.Option("--n", min=1, help="So many forks, as one group.")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Watch until all are scored.")] = False,
    timeout_s: Annotated[float, typer.Option(help="How long to wait.")] = 600.0,
) -> None:
    """Publish a rollout whose first turns are those of a recorded one and whose rest is live.

    The recorded answers are given again and its environments stepped again; the live calls go
    on from the recorded tokens. Forks are of purpose "replay": nothing trains on them. At turn
    0 with the parent's own seed, the same weights give the same first answer. With --n, the
    seed of fork K is SEED-K.

    Example: rollcall fork 3f2a1c --at 2 --n 8 --wait
    """
    from compose.fork import fork as publish_forks

    publish_forks(
        cluster(),
        rollout,
        turn=at,
        policy_id=policy,
        seed=seed,
        count=n,
        wait=wait,
        timeout_s=timeout_s,
    )
