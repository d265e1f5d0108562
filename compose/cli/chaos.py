"""`rollcall chaos`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import settings

if TYPE_CHECKING:
    from rollcall.compose.chaos.plan import ChaosPlan

Minutes = Annotated[float | None, typer.Option(help="Harm for so long.")]
Seed = Annotated[int, typer.Option(help="Of the schedule and the workload.")]
Kill = Annotated[str, typer.Option(help="Whom, by comma; pauses and network cuts befall them too.")]
Kills = Annotated[
    int | None, typer.Option(help="Instead of --minutes: a soak of so many SIGKILLs.")
]
Rollouts = Annotated[
    int | None, typer.Option(help="Publish so many; left out, as many as keep all busy.")
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="WHEEL",
        help="Half of the workers are of this release, and swap with every kill; no rollout is "
        "hosted then.",
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="Of the run that is trained: training, training-async, or a file."
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the figures there.")]
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
    """Kill, pause and cut off whatever runs, on a broker of its own; then verify the log.

    Exit code 0 when nothing was lost, doubled or breached, no agent's answered ask was made a model
    call again, every shell ran what it was told, no box is left, and whatever was trained comes to
    the same bits where nobody kills its trainer, and each open transaction of a `stranger` was
    named while it lasted; else 1. `engine` is a docker engine of the run's own, for half of the
    shells; root alone can start one. `clocks` sets a worker's wall clock back by hours and right
    again, `ids` has the registry give each schema's id to another one, `store` takes away where
    heavy records lie, and `log` cuts off the end of a partition, which a worker must name; nothing
    is buried for any of them.

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
