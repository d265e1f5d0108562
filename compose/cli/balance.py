"""`rollcall balance`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli import connection
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rollcall.consumers.history.runs.balance_report import BalanceReport

Run = Annotated[str, typer.Argument(help="A run's id or folder.")]
Servers = Annotated[
    int | None,
    typer.Option(min=1, help="The number of model servers; default: that of the recipe."),
]
Steps = Annotated[int, typer.Option(min=1, help="The number of last steps to use.")]
Json = Annotated[Path | None, typer.Option(help="Write the figures to this file.")]


def balance(run: Run, servers: Servers = None, steps: Steps = 10, json: Json = None) -> None:
    """Show whether a run's trainer waits for rollouts, and how many model servers suit it.

    Example: rollcall balance lake-any-start-20261121-155458-s7 --servers 2
    """
    from dataclasses import asdict

    from rollcall.compose.files import refuse_no_folder, write_json
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


def balance_lines(report: "BalanceReport") -> list[str]:
    """Return three lines: the wait, the outcomes of the rollouts, the advice."""
    return [
        f"steps {report.first}..{report.last} of {report.run_id}: the trainer waited for "
        f"{report.wait_share:.1%} of its time",
        f"{report.produced} rollouts came: {report.used} used ({report.length_used:.1f} tokens in "
        f"the mean), {report.dropped} dropped ({report.length_dropped:.1f}), {report.cancelled} "
        f"cancelled ({report.length_cancelled:.1f})",
        _advice(report),
    ]


def _advice(report: "BalanceReport") -> str:
    change, servers = report.change, report.servers
    if change > 0:
        return f"add {change} to the {_servers(servers)}: the trainer lacks rollouts"
    if change < 0:
        return f"take {-change} of the {_servers(servers)} away: more is sampled than used"
    return f"leave it at {_servers(servers)}"


def _servers(count: int) -> str:
    return "one model server" if count == 1 else f"{count} model servers"
