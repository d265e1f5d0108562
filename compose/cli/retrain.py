"""`rollcall retrain`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from compose.cli import connection
from schemas.errors import Refused

STEPS = re.compile(r"(\d+)(?:\.\.(\d+))?")

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Steps = Annotated[str, typer.Option(metavar="A..B", help="Which steps; or one.")]
Version = Annotated[
    int | None, typer.Option(help="Of the branch that led there, not to the newest.")
]
Json = Annotated[Path | None, typer.Option(help="Write the report there.")]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="learner.KEY=VALUE",
        help="What if: learn otherwise from them.",
    ),
]
WithoutTask = Annotated[
    str, typer.Option(metavar="PATTERN", help="What if: without tasks of such ids, as `maze-*`.")
]
HeldOut = Annotated[
    bool,
    typer.Option(
        "--held-out/--no-held-out", help="What if: let both results play the held-out seeds."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="What if: the policy that it comes to, as a directory.")
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

    Begins at the newest kept checkpoint before A. Writes no record and nothing of the run.
    Exit code 1 where weights differ: the bits are the same on the same CPU with the same
    ROLLCALL_TRAINING__THREADS. --with and --without-task ask what another rule, or fewer tasks,
    would have made of the same batches; both are trained, told of side by side, and let play the
    run's held-out seeds in this process.

    Example: rollcall retrain lake-any-start-20261121-155458-s7 --steps 21..24
    """
    from compose.files import refuse_no_folder, write_json
    from compose.runs import run_folder

    numbers = parse_steps(steps)
    refuse_no_folder(json)
    otherwise = bool(with_ or without_task)
    if out is not None and not otherwise:
        msg = "--out is for what --with or --without-task come to; give one, or use export-policy"
        raise Refused(msg)
    cluster = connection.cluster()
    folder = run_folder.find(cluster.settings.state(), run)
    threads = cluster.settings.training.threads
    if otherwise:
        from compose.runs.what_if_run import what_if

        report = what_if(
            cluster, folder, numbers, with_ or [], without_task,
            version=version, threads=threads, out=out, tell=typer.echo,
            playing=cluster.settings if held_out else None,
        )  # fmt: skip
    else:
        from compose.pages.retraining_page import retrain_and_tell

        report = retrain_and_tell(
            cluster, folder.trained(), numbers, version=version, threads=threads, tell=typer.echo
        )
    if json is not None:
        write_json(json, report)
    if not otherwise and report["differing"]:
        raise typer.Exit(1)


def parse_steps(text: str) -> tuple[int, int]:
    """`3..5`, or `3` for one; raises Refused."""
    match = STEPS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        msg = f"--steps {text!r} is no range of steps; write a..b with 1 <= a <= b, such as 3..5"
        raise Refused(msg)
    return first, last
