"""`rollcall waiting`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollcall.compose.cli.connection import cluster
from rollcall.compose.console import safe

if TYPE_CHECKING:
    from rollcall.consumers.agents.control_state import ControlState
    from rollcall.consumers.history.waiting.waiting import OpenWaits, WaitReader
    from rollcall.consumers.history.waiting.waits import Wait

Rollout = Annotated[str, typer.Option(help="Only this rollout.")]
Group = Annotated[str, typer.Option(help="Only this group, with its scored members.")]
OlderThan = Annotated[str, typer.Option(help="Only waits of at least this time, such as 5m.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


def waiting(
    rollout: Rollout = "", group: Group = "", older_than: OlderThan = "", json: Json = False
) -> None:
    """Show what each open rollout waits for: the worker, since when, and until when.

    This is read from the log, so it also works while no worker runs.

    Example: rollcall waiting --older-than 5m
    """
    import time
    from dataclasses import replace

    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.reading.times import seconds_of

    long_s = seconds_of(older_than) if older_than else 0.0
    state = _chosen(rollout, group)
    now_ms = int(time.time() * 1000)
    waits = [wait for wait in state.waits if wait.since_ms <= now_ms - long_s * 1000]
    state = replace(state, waits=waits)
    emit(state.plain(now_ms), lambda terminal: print_waiting(state, now_ms, terminal), json=json)


def wait_reader(group_id: str = "") -> "WaitReader":
    """Return a reader of the waits on this cluster; raises Unavailable."""
    from rollcall.consumers.history.reading.local_programs import watched_world
    from rollcall.consumers.history.waiting.waiting import WaitReader

    here = cluster()
    world = watched_world(here.settings.agents.program_timeout_s)
    scoring_id = here.settings.rewards.scoring_id
    quota = here.settings.agents.quota()
    return WaitReader(here, here.admin, world, scoring_id, group_id=group_id, quota=quota)


def _chosen(rollout: str, group: str) -> "OpenWaits":
    """Return the waits of a rollout or a group; raises Refused for an unknown id."""
    from dataclasses import replace

    from rollcall.consumers.history.reading.known_names import require_known
    from rollcall.consumers.history.rollouts.rollout_search import has_key

    state = wait_reader(group).waiting()
    waits = [wait for wait in state.waits if not rollout or wait.rollout_id == rollout]
    waits = [wait for wait in waits if not group or wait.group_id == group]
    remarks = list(state.remarks)
    if not waits:
        here = cluster()
        for name, topic in ((rollout, here.topics.requests), (group, here.topics.scored)):
            if not name:
                continue
            if not has_key(here, topic, name):
                require_known(here, name)  # reads the whole journal
            remarks.append(f"{name} has ended, and its rewards are there")
    return replace(state, waits=waits, remarks=remarks)


WAITS_SHOWN = 40


def print_waiting(waiting: "OpenWaits", now_ms: int, terminal: Console) -> None:
    """Print remarks, totals, and a row for each of the oldest waits."""
    for remark in waiting.remarks:
        terminal.print(safe(f"note: {remark}", style="yellow"), soft_wrap=True)
    terminal.print(_headline(waiting, now_ms), soft_wrap=True)
    if waiting.waits:
        terminal.print(_table(waiting, now_ms))
    more = len(waiting.waits) - WAITS_SHOWN
    if more > 0:
        text = (
            f"{more:,} more waits, none of them older; --json has all of them, --rollout, --group "
            "and --older-than choose"
        )
        terminal.print(text, soft_wrap=True)


def _headline(waiting: "OpenWaits", now_ms: int) -> Text:
    paused = "agents are paused: no request is started until `rollcall resume`\n"
    text = safe(paused if waiting.control.paused else "", style="bold red")
    for run_id in sorted(waiting.control.paused_runs - {""}):
        what = f"run {run_id} is paused: none of its rollouts begins until "
        text.append(f"{what}`rollcall resume --run {run_id}`\n", "bold red")
    rollouts = len({wait.rollout_id for wait in waiting.waits})
    words = [
        f"{count:,} {reason} (oldest {_ago(now_ms - since)})"
        for reason, count, since in waiting.totals()
    ]
    who = "1 rollout waits" if rollouts == 1 else f"{rollouts:,} rollouts wait"
    text.append(f"{who}: {', '.join(words)}" if words else "nothing is waited for", "bold")
    return text


def _table(waiting: "OpenWaits", now_ms: int) -> Table:
    from rollcall.consumers.history.waiting.waiting import NOBODY

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("rollout", "group", "for", "on", "since", "deadline"):
        table.add_column(name, no_wrap=True)
    table.add_column("what", overflow="fold")
    for wait in waiting.waits[:WAITS_SHOWN]:
        on = waiting.on(wait)
        left = None if wait.deadline_ms is None else wait.deadline_ms - now_ms
        deadline = "" if left is None else f"in {_ago(left)}" if left > 0 else f"{_ago(-left)} ago"
        table.add_row(
            wait.rollout_id,
            wait.group_id,
            wait.reason,
            safe(on, style="red" if on == NOBODY else ""),
            f"{_ago(now_ms - wait.since_ms)}",
            safe(deadline, style="red" if left is not None and left <= 0 else ""),
            _asked_to_end(wait, waiting.control) + wait.what,
        )
    return table


def _asked_to_end(wait: "Wait", control: "ControlState") -> str:
    """Return the remark on a cancel that no agents worker has executed yet."""
    from rollcall.consumers.history.waiting.waiting import REASONS_OF_ENDED

    reason = control.reason_for(wait.rollout_id, wait.group_id)
    return "" if reason is None or wait.reason in REASONS_OF_ENDED else "(cancel was asked) "


def _ago(ms: int) -> str:
    """Format a duration briefly."""
    seconds = max(0, ms) / 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
