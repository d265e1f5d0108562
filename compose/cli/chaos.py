"""`rollcall chaos`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import settings

if TYPE_CHECKING:
    from rollcall.compose.chaos.plan import ChaosPlan

Minutes = Annotated[float | None, typer.Option(help="The duration of the faults.")]
Seed = Annotated[int, typer.Option(help="The seed of schedule and workload.")]
Kill = Annotated[
    str, typer.Option(help="The roles to kill, pause and cut off from the network, by comma.")
]
Kills = Annotated[
    int | None, typer.Option(help="Run until this number of SIGKILLs, instead of --minutes.")
]
Rollouts = Annotated[
    int | None, typer.Option(help="Rollouts to publish; default: enough to keep all workers busy.")
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="WHEEL",
        help="Run half of the workers from this release; workers change release with every kill. "
        "No rollout uses a hosted agent then.",
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="The recipe to train: training, training-async, or a file."
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the figures to this file.")]
Keep = Annotated[
    Path | None, typer.Option(help="Keep the log and the workers' logs in this directory.")
]

EVERYBODY = (
    "agents,models,environments,rewards,processes,boxes,training,broker,registry,stranger,clocks,"
    "ids,store,log"
)


def chaos(
    minutes: Minutes = None,
    seed: Seed = 7,
    kill: Kill = EVERYBODY,
    kills: Kills = None,
    rollouts: Rollouts = None,
    beside: Beside = None,
    recipe: Recipe = "training",
    json: Json = None,
    keep: Keep = None,
) -> None:
    """Kill, pause and disconnect processes on a broker of their own; then verify the log.

    The exit code is 0 if the following holds, otherwise 1: no rollout was lost, doubled or breached
    an invariant; no answered request of an agent led to a second model call; every shell ran its
    commands; no box is left; training the same steps without kills gives the same weights to the
    bit; each open transaction of a `stranger` was reported while it lasted.

    `engine` is a docker engine of this run, for half of the shells; it needs root. `clocks` sets a
    worker's wall clock back by hours and then right again. `ids` lets the registry assign other
    schemas to its ids. `store` makes the object store unavailable. `log` truncates a partition,
    which a worker must report. None of these may send a record to `dead.letters`.

    Example: rollcall chaos --minutes 10 --seed 7 --json chaos.json

    The soak: rollcall chaos --kills 1000

    A trainer alone: rollcall chaos --kill training --kills 100 --recipe training-async

    A rolling upgrade and back: rollcall chaos --minutes 5 --beside rollcall-0.2.0-py3-none-any.whl
    """
    from rollcall.compose.chaos.faults import roles_of
    from rollcall.compose.chaos.plan import ChaosPlan

    plan = ChaosPlan(seed, roles_of(kill), minutes, kills, rollouts, recipe, beside)
    raise typer.Exit(_harm(plan, json, keep))


def _harm(plan: "ChaosPlan", json: Path | None, keep: Path | None) -> int:
    """Run the plan; return the exit code."""
    from rollcall.compose.chaos.run import run_chaos
    from rollcall.compose.conductor.conductor import Stopped
    from rollcall.compose.console import PlainConsole

    terminal = PlainConsole()
    try:
        return 0 if run_chaos(settings(), plan, json=json, keep=keep, terminal=terminal) else 1
    except Stopped:
        terminal.print("stopped; everything was taken down")
        return 130
