"""`rollcall tasks`: check, import and build task directories."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rollcall.compose.cli.connection import settings
from rollcall.compose.console import safe
from rollcall.compose.extras import require
from rollcall.compose.terminal import one_line, say

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.sandbox.tasks.listing import CheckedTask
    from rollcall.sandbox.tasks.release_pair import ReleasePair

Directories = Annotated[
    list[Path], typer.Argument(help="Directories of tasks, or folders of such directories.")
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Into = Annotated[
    Path | None, typer.Option(help="A folder of tasks; default: tasks/ in the state directory.")
]
BoxName = Annotated[
    str, typer.Option("--box", help="The driver of the box for tests; local isolates nothing.")
]
Image = Annotated[
    str, typer.Option(help="The image of the box; default: this host's programs, with pytest.")
]
Programs = Annotated[
    Path | None, typer.Option("--path", help="A directory to put first on the box's PATH.")
]


def check(directories: Directories, json: Json = False) -> None:
    """Check tasks: print each one's name, or its faults by file and key.

    The exit code is 1 if a task has a fault.

    Example: rollcall tasks check .rollcall/tasks
    """
    from rollcall.compose.terminal import emit
    from rollcall.sandbox.tasks.listing import checked_tasks

    rows = checked_tasks(directories)
    emit(rows, lambda terminal: print_tasks(terminal, rows), json=json)
    if any(row.faults for row in rows):
        raise typer.Exit(1)


def request(
    directories: Directories,
    box: Annotated[
        str, typer.Option("--box", help="The driver of boxes; default: that of the worker.")
    ] = "",
    agent: Annotated[
        str, typer.Option(help="An agent program, or the name of a hosted agent.")
    ] = "react",
    max_tokens: Annotated[
        int, typer.Option(min=0, help="The most tokens of an answer; 0: the default.")
    ] = 0,
    path: Programs = None,
    image: Annotated[
        str, typer.Option(help="An image for all tasks; host: the programs of the host.")
    ] = "",
) -> None:
    """Print a line for `rollcall submit` for each task.

    Example: rollcall tasks request .rollcall/tasks --box bubblewrap > rollouts.jsonl
    """
    from rollcall.compose.terminal import emit_json
    from rollcall.sandbox.boxes.box import check_box
    from rollcall.sandbox.tasks.harbor import read_task
    from rollcall.sandbox.tasks.listing import task_directories
    from rollcall.sandbox.tasks.suite_runs import programs_first
    from rollcall.sandbox.tasks.task_names import request_of

    if box:
        check_box(box)
    env = programs_first(path)
    for task in [read_task(directory) for directory in task_directories(directories)]:
        line = request_of(task, box=box, agent=agent, env=env, max_tokens=max_tokens, image=image)
        emit_json(line, one_line=True)


def import_swe(
    rows: Annotated[Path, typer.Argument(help="A JSON Lines file of SWE-bench-style rows.")],
    into: Into = None,
    repositories: Annotated[
        Path | None, typer.Option(help="A folder of clones, as OWNER/NAME, OWNER__NAME or NAME.")
    ] = None,
    box: BoxName = "auto",
    image: Annotated[
        str, typer.Option(help="An image to prove tasks in; host: the programs of the host.")
    ] = "",
    path: Programs = None,
) -> None:
    """Convert rows to tasks if their repository or image is available; explain the others.

    The judge proves each task: its gold patch must resolve it five times, and a patch that mends
    nothing must not. A task without a box of its image is marked as not proven. The exit code is 1
    if a row was refused.

    Example: rollcall tasks import swe rows.jsonl --repositories clones
    """
    require("tomli_w")
    from rollcall.compose.submission import lines_of
    from rollcall.sandbox.boxes.box import Spec, check_box, driver
    from rollcall.sandbox.tasks.proof import prover
    from rollcall.sandbox.tasks.suite_runs import programs_first
    from rollcall.sandbox.tasks.swe import import_rows
    from rollcall.schemas.errors import Refused

    if repositories is not None and not repositories.is_dir():
        msg = f"--repositories {repositories} is no directory"
        raise Refused(msg)
    done = refused = 0
    own = not image and box != "local"
    image = "" if image == "host" else image
    spec = None if own else Spec(image=image, env=programs_first(path))
    proving = prover(driver(check_box(box)).open, settings().rewards.waiting_timeout_s, spec)
    for row in import_rows(lines_of(str(rows)), _into(into), repositories, proving):
        if row.task is None:
            say(f"{row.instance}: {row.refused}", err=True)
            refused += 1
            continue
        dropped = f"; {row.dropped:,} tests do not always pass, and are left out"
        dropped = dropped if row.dropped else ""
        unproven = f"; not proven: {row.unproven}" if row.unproven else ""
        say(f"{row.task.name} {row.task.digest[:16]}{dropped}{unproven}")
        done += 1
    say(f"{done:,} of {done + refused:,} rows became tasks")
    if refused:
        raise typer.Exit(1)


def build_release_pair(
    name: Annotated[str, typer.Argument(help="A package of the index.")],
    old: Annotated[str, typer.Argument(help="The release whose code the agent changes.")],
    new: Annotated[str, typer.Argument(help="A later release, whose tests judge the patch.")],
    into: Into = None,
    box: BoxName = "auto",
    image: Image = "",
    path: Programs = None,
) -> None:
    """Build a task from two releases: the older code with the newer tests.

    pip runs the package's build back end as your user; tests run in boxes.

    Example: rollcall tasks build release-pair parse 1.20.0 1.20.1
    """
    require("packaging", "tomli_w")
    from rollcall.sandbox.tasks.release_pair import ReleasePair

    _build([ReleasePair(name, old, new)], into, box, image, path)


def build_suite_b(
    into: Into = None, box: BoxName = "auto", image: Image = "", path: Programs = None
) -> None:
    """Build five tasks from releases; existing ones are kept.

    Example: rollcall tasks build suite-b
    """
    require("packaging", "tomli_w")
    from rollcall.sandbox.tasks.suite_b import SUITE_B

    folder = _into(into)
    missing = [pair for pair in SUITE_B if not (folder / pair.title).exists()]
    for pair in SUITE_B:
        if pair not in missing:
            say(f"{pair.title} is there already")
    _build(missing, into, box, image, path)


def _build(
    pairs: "Iterable[ReleasePair]", into: Path | None, box: str, image: str, path: Path | None
) -> None:
    """Build and print each; the first failure ends it."""
    import asyncio

    from rollcall.sandbox.tasks.release_pair import build_pair
    from rollcall.sandbox.tasks.suite_runs import suite_box

    async def each() -> None:
        where = await suite_box(box, image, path)
        for pair in pairs:
            task = await build_pair(pair, _into(into), where, say)
            tests = task.file.verifier
            counts = f"{len(tests.fail_to_pass)} to mend, {len(tests.pass_to_pass)} to keep"
            say(f"{task.name} {task.digest[:16]}: {counts}")

    asyncio.run(each())


def _into(given: Path | None) -> Path:
    return given or settings().tasks()


SHOWN = 16
"""The number of digits of a digest that are shown."""


def print_tasks(terminal: "Console", rows: "Sequence[CheckedTask]") -> None:
    """Print valid tasks as a table, and a line for each fault of the others."""
    if good := [row for row in rows if not row.faults]:
        terminal.print(_table(good))
    for row in rows:
        for fault in row.faults:
            terminal.print(one_line(f"{row.directory}/{fault}"), markup=False, soft_wrap=True)
    bad = sum(bool(row.faults) for row in rows)
    if bad:
        terminal.print(f"{bad:,} of {len(rows):,} tasks cannot be used")


def _table(rows: "Sequence[CheckedTask]") -> Table:
    heads = "task", "digest", "parser", "to mend", "to keep", "proven"
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        counts = f"{row.fail_to_pass:,}", f"{row.pass_to_pass:,}"
        name = safe(one_line(row.directory))
        proven = "" if row.proven is None else "yes" if row.proven else "no"
        table.add_row(name, row.digest[:SHOWN], row.parser, *counts, proven)
    return table
