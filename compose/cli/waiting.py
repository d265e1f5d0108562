"""`rollcall waiting`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster

if TYPE_CHECKING:
    from rollcall.consumers.history.waiting.waiting import OpenWaits, WaitReader

Rollout = Annotated[str, typer.Option(help="Only this rollout.")]
Group = Annotated[str, typer.Option(help="Only this group, its scored members too.")]
OlderThan = Annotated[str, typer.Option(help="Only waits that long, such as 5m.")]
Json = Annotated[bool, typer.Option("--json", help="All of it, as one object.")]


def waiting(
    rollout: Rollout = "", group: Group = "", older_than: OlderThan = "", json: Json = False
) -> None:
    """Say what every open rollout waits for, on whom, since when, until when.

    From the log alone, so also while every worker is down.

    Example: rollcall waiting --older-than 5m
    """
    import time
    from dataclasses import replace

    from rollcall.compose.pages.waiting_page import print_waiting
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
