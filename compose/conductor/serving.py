"""Serve a policy without training: one worker of each group, until it is stopped."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console as Terminal

from rollcall.compose.cluster import Cluster, complete_topics
from rollcall.compose.conductor.conductor import (
    Stopped,
    interruptible,
    services,
    services_libraries,
    unless_down,
)
from rollcall.compose.extras import require
from rollcall.compose.runs.publish_policy import newest_version, publish_policy, require_model
from rollcall.compose.settings import Settings
from rollcall.compose.workers.engines import check_loads_weights, check_models
from rollcall.compose.workers.supervisor import Supervisor
from rollcall.schemas.topics import checked

LOOK_EVERY_S = 1.0


def serve(settings: Settings, directory: Path, policy_id: str, terminal: Terminal) -> None:
    """Serve a model directory under a policy id; returns when stopped, leaves no process behind.

    Raises Refused for no model, and Unfit if a worker keeps dying.
    """
    checked(policy_id)
    require_model(directory)
    require("torch", "transformers", *services_libraries(settings))
    check_loads_weights(settings.models.engine, f"`rollcall serve` of {str(directory)!r}")
    check_models(settings.models)
    with interruptible() as check, services(settings, terminal) as (cluster, _):
        version = _announced(cluster, directory, policy_id)
        logs = settings.state() / "served" / policy_id / "logs"
        supervisor = Supervisor(logs, cluster.environment(), settings.models.python)
        try:
            _start(supervisor, directory, policy_id)
            terminal.print(_words(policy_id, version, logs), highlight=False, soft_wrap=True)
            _keep_up(supervisor, unless_down(check, cluster))
        except Stopped:
            terminal.print("stopped; what was asked and not ended goes on when it is served again")
        finally:
            supervisor.stop()
            cluster.close()


def _announced(cluster: Cluster, directory: Path, policy_id: str) -> int:
    """Return the newest version; announce the first one if there is none."""
    complete_topics(cluster, policy_id)
    version = newest_version(cluster, policy_id)
    return publish_policy(cluster, directory, policy_id) if version < 0 else version


def _start(supervisor: Supervisor, directory: Path, policy_id: str) -> None:
    model = ("--policy", policy_id, "--directory", str(directory.absolute()))
    supervisor.start(f"models-{policy_id}", "models", *model)
    for role in ("agents", "environments", "rewards"):
        supervisor.start(f"{role}-{policy_id}", role)


def _keep_up(supervisor: Supervisor, check: Callable[[], None]) -> None:
    """Restart dead workers until all were drained; raises Stopped, and Unfit for a hopeless one."""
    while not all(child.finished for child in supervisor.children.values()):
        check()
        supervisor.keep_alive()
        time.sleep(LOOK_EVERY_S)
    check()


def _words(policy_id: str, version: int, logs: Path) -> str:
    return (
        f"serving version {version} of {policy_id}; the workers' logs are in {logs}\n"
        "Ctrl-C stops it. In another terminal:\n"
        '  echo \'{"agent": "single_turn", "task": {"prompt": "hello"}}\' | '
        f"rollcall submit - --policy {policy_id} --wait"
    )
