"""`rollcall demo`, `run`, `serve`, `runs`: training runs, and what is left of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compose.cli import connection

if TYPE_CHECKING:
    from rich.table import Table

    from compose.runs.listing import RunEntry

Summary = Annotated[Path | None, typer.Option(help="Write the figures there, as JSON.")]
Seed = Annotated[int, typer.Option(help="Of weights, tasks and sampling.")]
Resume = Annotated[bool, typer.Option(help="Go on with the newest unfinished run.")]


def demo(seed: Seed = 7, summary: Summary = None, resume: Resume = False) -> None:
    """Train the lake-any-start policy from random weights, here and now."""
    _conduct("lake-any-start", seed, resume, summary, None)


def run_recipe(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    seed: Seed = 7,
    summary: Summary = None,
    resume: Resume = False,
    log: Annotated[
        str, typer.Option(help="kafka, or memory: one process, nothing kept.")
    ] = "kafka",
    tasks: Annotated[
        Path | None, typer.Option(help="Task directories in place of the recipe's own.")
    ] = None,
) -> None:
    """Run a recipe: services, workers, training, figures.

    Example: rollcall run repairs --tasks .rollcall/tasks
    """
    from schemas.errors import Refused
    from schemas.names import unknown

    if resume and tasks is not None:
        msg = "--resume goes on with the tasks that the run began with; leave --tasks out"
        raise Refused(msg)
    if log == "kafka":
        _conduct(recipe, seed, resume, summary, tasks)
    elif log == "memory":
        if resume:
            msg = "--log memory keeps nothing that could be resumed"
            raise Refused(msg)
        from compose.conductor.in_memory import run_in_memory
        from compose.log_setup import set_up

        set_up("memory", "memory")
        run_in_memory(recipe, connection.settings(), seed=seed, summary=summary, tasks=tasks)
    else:
        raise unknown("log", log, ["kafka", "memory"])


def _conduct(
    recipe: str, seed: int, resume: bool, summary: Path | None, tasks: Path | None
) -> None:
    from rich.console import Console

    from compose.conductor.conductor import Stopped, conduct
    from compose.log_setup import set_up

    set_up("conductor", "conductor")
    terminal = Console()
    try:
        conduct(
            recipe,
            connection.settings(),
            seed=seed,
            resume=resume,
            summary=summary,
            terminal=terminal,
            tasks=tasks,
        )
    except Stopped:
        terminal.print("stopped; nothing is lost: go on with --resume")
        raise typer.Exit(130) from None


def serve(
    directory: Annotated[Path, typer.Option(help="A local Hugging Face directory.")],
    policy: Annotated[str, typer.Option(help="The policy id to serve it under.")] = "policy",
) -> None:
    """Serve a model without training it: services, one worker of each group, until Ctrl-C.

    Announces the directory's weights where the policy has no version yet; else serves the newest.

    Example: rollcall serve --policy mine --directory my-policy
    """
    from rich.console import Console

    from compose.conductor.serving import serve as serve_policy
    from compose.log_setup import set_up

    set_up("conductor", "conductor")
    serve_policy(connection.settings(), directory, policy, Console())


def list_runs(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")] = False,
) -> None:
    """List every run that has a folder here or a step in the log; or retire one.

    `phases p50`: seconds of submission, scheduling, environment start and execution.

    Example: rollcall runs --json
    """
    if context.invoked_subcommand is not None:
        return
    from compose.runs import listing
    from compose.terminal import emit

    entries = listing.list_runs(connection.cluster())
    if entries or json:
        emit(entries, lambda terminal: terminal.print(_table(entries)), json=json)
    else:
        typer.echo("no run yet; `rollcall demo` makes one")


def _table(entries: "list[RunEntry]") -> "Table":
    from rich.table import Table

    from consumers.history.times import iso

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
        bool, typer.Option("--folder", help="Remove its checkpoints, weights and logs too.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this it is only shown.")
    ] = False,
) -> None:
    """Remove the calls topic and the consumer groups of a run that is over.

    Refused while something of it is open. Its history stays: the journal, the trajectories
    and `train.steps` hold it.

    Example: rollcall runs retire lake-any-start-20261121-155458-s7 --yes
    """
    from compose.runs.retirement import remains_of, remove

    cluster = connection.cluster()
    remains = remains_of(cluster, run, folder=folder)
    if yes:
        remove(cluster, remains)
    for line in remains.lines():
        typer.echo(f"{'removed' if yes else 'would remove'} {line}")
    if not remains.lines():
        typer.echo(f"nothing is left of run {remains.run_id}")
    elif not yes:
        typer.echo("do it with --yes")
