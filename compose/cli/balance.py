"""`rollcall balance`."""

from pathlib import Path
from typing import Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.terminal import say

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Servers = Annotated[
    int | None,
    typer.Option(min=1, help="How many model servers there are; else what the recipe starts."),
]
Steps = Annotated[int, typer.Option(min=1, help="Of so many last steps.")]
Json = Annotated[Path | None, typer.Option(help="Write the figures there.")]


def balance(run: Run, servers: Servers = None, steps: Steps = 10, json: Json = None) -> None:
    """Say whether a run's trainer waits for rollouts, and how many model servers fit it.

    Example: rollcall balance lake-any-start-20261121-155458-s7 --servers 2
    """
    from dataclasses import asdict

    from rollcall.compose.files import refuse_no_folder, write_json
    from rollcall.compose.pages.balance_page import balance_lines
    from rollcall.compose.runs import run_folder
    from rollcall.consumers.history.runs.balance_report import balance_of

    refuse_no_folder(json)
    cluster = connection.cluster()
    folder = run_folder.find(cluster.settings.state(), run)
    there = servers or folder.recipe.processes.models
    report = balance_of(cluster, folder.trained(), there, steps)
    for line in balance_lines(report):
        say(line)
    if json is not None:
        write_json(json, asdict(report))
