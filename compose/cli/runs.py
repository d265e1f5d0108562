"""`rollcall demo`, `run`, `serve`, `runs`: training runs, and their remains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli import connection
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from rollcall.compose.runs.listing import RunEntry

Summary = Annotated[Path | None, typer.Option(help="Write the figures to this file as JSON.")]
Seed = Annotated[int, typer.Option(help="The seed of weights, tasks and sampling.")]
Resume = Annotated[bool, typer.Option(help="Resume the newest unfinished run.")]
RequireGoal = Annotated[
    bool, typer.Option("--require-goal", help="Exit with code 3 if the goal was missed.")
]
GOAL_MISSED = 3


def demo(
    seed: Seed = 7,
    summary: Summary = None,
    resume: Resume = False,
    require_goal: RequireGoal = False,
) -> None:
    """Train the lake-any-start policy from random weights."""
    _conduct("lake-any-start", seed, resume, summary, None, require_goal)


def run_recipe(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    seed: Seed = 7,
    summary: Summary = None,
    resume: Resume = False,
    log: Annotated[
        str, typer.Option(help="kafka, or memory: one process, and no log is kept.")
    ] = "kafka",
    tasks: Annotated[
        Path | None, typer.Option(help="A folder of tasks to use instead of the recipe's.")
    ] = None,
    require_goal: RequireGoal = False,
) -> None:
    """Run a recipe: start services and workers, train, print figures.

    Its tasks are tried before anything is published. A run in which nothing but failures comes is
    stopped, with exit code 1.

    Example: rollcall run repairs --tasks .rollcall/tasks
    """
    _conduct(recipe, seed, resume, summary, tasks, require_goal, log)


def _require_a_goal(recipe: str, wanted: bool) -> None:
    """Raise Refused if a goal is required and the recipe has none."""
    from rollcall.compose.runs.recipe import load_recipe
    from rollcall.schemas.errors import Refused

    if wanted and load_recipe(recipe)[0].evaluation.goal > 1:
        msg = f"--require-goal: recipe {recipe!r} has no goal; set goal in [evaluation], at most 1"
        raise Refused(msg)


def _require_reached(told: "Mapping[str, Any]", wanted: bool) -> None:
    if wanted and not told["goal_reached"]:
        say(f"rollcall: the goal of {told['goal']:g} held-out success was missed", err=True)
        raise typer.Exit(GOAL_MISSED)


def _conduct(
    recipe: str,
    seed: int,
    resume: bool,
    summary: Path | None,
    tasks: Path | None,
    require_goal: bool,
    log: str = "kafka",
) -> None:
    from rollcall.compose.conductor.conductor import Stopped
    from rollcall.compose.python_api import run

    _require_a_goal(recipe, require_goal)
    try:
        told = run(recipe, seed=seed, log=log, tasks=tasks, resume=resume, summary=summary)
    except Stopped as stopped:
        say(_stopped(stopped.run_id, recipe))
        raise typer.Exit(130) from None
    _require_reached(told, require_goal)


def _stopped(run_id: str, recipe: str) -> str:
    if not run_id:
        return "stopped before the run began; nothing of it is kept"
    return f"stopped; nothing of {run_id} is lost: go on with `rollcall run {recipe} --resume`"


def serve(
    directory: Annotated[Path, typer.Option(help="A local Hugging Face directory.")],
    policy: Annotated[str, typer.Option(help="The policy id to serve it under.")] = "policy",
) -> None:
    """Serve a model without training: services and one worker of each group, until Ctrl-C.

    Announces the directory's weights if the policy has no version yet; otherwise it serves the
    newest version.

    Example: rollcall serve --policy mine --directory my-policy
    """
    from rollcall.compose.conductor.serving import serve as serve_policy
    from rollcall.compose.console import PlainConsole
    from rollcall.compose.log_setup import set_up

    set_up("conductor", "conductor")
    serve_policy(connection.settings(), directory, policy, PlainConsole())


def list_runs(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List all runs that have a folder here or a step in the log; or retire one.

    `phases p50`: seconds of submission, scheduling, environment start and execution.

    Example: rollcall runs --json
    """
    if context.invoked_subcommand is not None:
        return
    from rollcall.compose.runs import listing
    from rollcall.compose.terminal import emit

    entries = listing.list_runs(connection.cluster())
    if entries or json:
        emit(entries, lambda terminal: terminal.print(_table(entries)), json=json)
    else:
        say("no run yet; `rollcall demo` makes one")


def _table(entries: "list[RunEntry]") -> "Table":
    from rich.table import Table

    from rollcall.consumers.history.reading.times import iso

    figures = "steps", "version", "held-out", "phases p50"
    table = Table("run", "recipe", "policy", "started", *figures, "state")
    for column in (4, 5, 6, 7):
        table.columns[column].justify = "right"
    for run in entries:
        table.add_row(
            run.run_id,
            run.recipe or "-",
            run.policy_id,
            (iso(run.started_ms) or "-")[:19],
            f"{run.steps:,}",
            "-" if run.version is None else str(run.version),
            "-" if run.success is None else f"{run.success:.3f}",
            " ".join(f"{each['p50']:.3g}" for each in run.timers.values()) or "-",
            run.state,
        )
    return table


def retire(
    run: Annotated[str, typer.Argument(help="A run's id or folder.")],
    folder: Annotated[
        bool, typer.Option("--folder", help="Also remove its checkpoints, weights and logs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it nothing changes.")] = False,
) -> None:
    """Remove the calls topic and the consumer groups of a run that has ended.

    It is refused while rollouts of the run are open. The run's history stays in the journal, the
    trajectories and `train.steps`.

    Example: rollcall runs retire lake-any-start-20261121-155458-s7 --yes
    """
    from rollcall.compose.runs.listing import remains_of, remove

    cluster = connection.cluster()
    remains = remains_of(cluster, run, folder=folder)
    if yes:
        remove(cluster, remains)
    for line in remains.lines():
        say(f"{'removed' if yes else 'would remove'} {line}")
    if not remains.lines():
        say(f"nothing is left of run {remains.run_id}")
    elif not yes:
        say("do it with --yes")
