"""`rollcall retrain`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli import connection
from rollcall.compose.terminal import say
from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster
    from rollcall.compose.runs.run_folder import RunFolder

STEPS = re.compile(r"(\d+)(?:\.\.(\d+))?")

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Steps = Annotated[str, typer.Option(metavar="A..B", help="The steps to train again, or one step.")]
Version = Annotated[
    int | None, typer.Option(help="Use the branch that led to this version, not the newest.")
]
Json = Annotated[Path | None, typer.Option(help="Write the report to this file.")]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="learner.KEY=VALUE",
        help="What if: train with another setting.",
    ),
]
WithoutTask = Annotated[
    str, typer.Option(metavar="PATTERN", help="What if: leave out tasks by id, such as `maze-*`.")
]
HeldOut = Annotated[
    bool,
    typer.Option(
        "--held-out/--no-held-out", help="What if: evaluate both results on the held-out seeds."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="What if: write the resulting policy to this directory.")
]


def retrain(
    run: Run,
    steps: Steps,
    version: Version = None,
    with_: With = None,
    without_task: WithoutTask = "",
    out: Out = None,
    held_out: HeldOut = True,
    json: Json = None,
) -> None:
    """Train steps of a run again from the record, and compare the weights after each.

    Starts from the newest kept checkpoint before A, and changes neither the log nor the run. The
    exit code is 1 if weights differ. They are equal to the bit on the same CPU with the same
    ROLLCALL_TRAINING__THREADS and the same number of ranks. --with and --without-task train the
    same batches with another setting or fewer tasks. Both results are shown side by side, and
    evaluated on the run's held-out seeds in this process.

    Example: rollcall retrain lake-any-start-20261121-155458-s7 --steps 21..24
    """
    from rollcall.compose.files import refuse_no_folder, write_json

    numbers = parse_steps(steps)
    refuse_no_folder(json)
    otherwise = bool(with_ or without_task)
    if out is not None and not otherwise:
        msg = "--out needs --with or --without-task; `export-policy` writes the run's own policy"
        raise Refused(msg)
    if otherwise:
        report = _otherwise(run, numbers, version, with_ or [], without_task, out, held_out)
    else:
        report = _again(run, numbers, version)
    if json is not None:
        write_json(json, report)
    if not otherwise and report["differing"]:
        raise typer.Exit(1)


def _again(run: str, steps: tuple[int, int], version: int | None) -> dict[str, Any]:
    """Retrain with the recorded rules."""
    from rollcall.compose.runs.retraining import retrain_and_tell

    cluster, folder, threads = _found(run)
    return retrain_and_tell(
        cluster, folder.trained(), steps, version=version, threads=threads, tell=say
    )


def _otherwise(
    run: str,
    steps: tuple[int, int],
    version: int | None,
    changes: list[str],
    without_task: str,
    out: Path | None,
    held_out: bool,
) -> dict[str, Any]:
    """Retrain with changed rules or fewer tasks."""
    from rollcall.compose.runs.retraining import what_if

    cluster, folder, threads = _found(run)
    return what_if(
        cluster,
        folder,
        steps,
        changes,
        without_task,
        version=version,
        threads=threads,
        out=out,
        tell=say,
        playing=cluster.settings if held_out else None,
    )


def _found(run: str) -> "tuple[Cluster, RunFolder, int]":
    """Return the cluster with its record, its folder, and the trainer's number of threads."""
    from rollcall.compose.runs import run_folder

    cluster = connection.cluster()
    folder = run_folder.find(cluster.settings.state(), run)
    return cluster, folder, cluster.settings.training.threads


def parse_steps(text: str) -> tuple[int, int]:
    """Parse `3..5`, or `3` for one step; raises Refused."""
    match = STEPS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        msg = f"--steps {text!r} is no range of steps; write a..b with 1 <= a <= b, such as 3..5"
        raise Refused(msg)
    return first, last
