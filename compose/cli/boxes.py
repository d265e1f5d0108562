"""`rollcall boxes`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rollcall.compose.cli.connection import cluster
from rollcall.compose.console import safe
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rollcall.consumers.history.waiting.box_lives import BoxRow
    from rollcall.sandbox.boxes.host_boxes import DriverReport

Drivers = Annotated[
    bool, typer.Option("--drivers", help="Show how each driver isolates boxes on this host.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]
NONE_ISOLATES = (
    "rollcall: no driver on this host isolates boxes. Run `apt-get install bubblewrap` and allow "
    "user namespaces, or start a docker engine and run workers as root. Until then only the driver "
    "`local` is available, if it is named"
)


def boxes(drivers: Drivers = False, json: Json = False) -> None:
    """List boxes with owner, rollout, age and lease, and differences between log and host.

    The log has the boxes of all workers, and the rollouts that wait for one; the drivers of this
    host know its present boxes. With --drivers the exit code is 1 if no driver isolates boxes.

    Example: rollcall boxes --drivers
    """
    import asyncio
    import time

    from rollcall.compose.terminal import emit
    from rollcall.consumers.environments.instance_records import host_name
    from rollcall.consumers.history.waiting.box_lives import box_lives, box_rows
    from rollcall.sandbox.boxes.host_boxes import on_this_host
    from rollcall.sandbox.boxes.leases import Leases

    if drivers:
        _tell_drivers(json=json)
        return
    at_hand = cluster()
    leases = Leases(at_hand.settings.leases(), "rollcall-boxes")
    here = asyncio.run(on_this_host())
    now_ms = int(time.time() * 1000)
    rows = box_rows(box_lives(at_hand), here, leases, host_name(), now_ms)
    show = partial(print_boxes, rows, here.silent)
    emit({"boxes": rows, "silent": here.silent}, show, json=json)


def _tell_drivers(*, json: bool) -> None:
    import asyncio

    from rollcall.compose.terminal import emit_json
    from rollcall.sandbox.boxes.host_boxes import survey

    reports = asyncio.run(survey())
    if json:
        emit_json(reports)
    else:
        for report in reports:
            _print_driver(report)
    if not any(report.isolates for report in reports):
        say(NONE_ISOLATES, err=True)
        raise typer.Exit(1)


def _print_driver(report: "DriverReport") -> None:
    say(report.name)
    if report.unavailable:
        say(f"  opens no box here: {report.unavailable}")
        return
    for what, by in report.enforces.items():
        say(f"  {what:<8} {by}")
    for line in report.lacks:
        say(f"  lacks    {line}")


def print_boxes(rows: "Sequence[BoxRow]", silent: Mapping[str, str], terminal: Console) -> None:
    """Print a row for each box, and the drivers that do not answer."""
    for name, why in silent.items():
        terminal.print(safe(f"note: {name} does not answer: {why}", style="yellow"))
    if not rows:
        terminal.print("no boxes, and nobody waits for one")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("box", "driver", "state", "owner", "rollout", "mode", "age", "lease"):
        table.add_column(name, no_wrap=True)
    table.add_column("disagreement", overflow="fold", style="red")
    for row in rows:
        owner = f"{row.owner} on {row.host}" if row.host else row.owner
        age, lease = _seconds(row.age_s), _seconds(row.lease_s)
        table.add_row(
            row.box_id,
            row.driver,
            row.state,
            owner,
            row.rollout_id,
            row.mode,
            age,
            lease,
            row.remark,
        )
    terminal.print(table)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} s" if value < float("inf") else "before a boot"
