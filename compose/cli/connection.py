"""The context of a command: the settings of this directory, and the cluster that they name.

A caller of the command line as a function, `app(words, obj=cluster)`, passes another cluster.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rollcall.compose.cluster import Cluster
    from rollcall.compose.settings import Settings

OURS = {
    "services",
    "services.lock",
    "services.down",
    "runs",
    "served",
    "tasks",
    "archive",
    "leases",
    "agent-processes",
    "policies",
    "logs",
    "schema_ids",
}
"""The entries of a state directory; one with others may be a user's home directory."""
CLUSTER: ContextVar["Cluster | None"] = ContextVar("cluster", default=None)
"""The cluster of the running command: passed in, or made on first use."""


def settings() -> "Settings":
    """Load settings: command line over ROLLCALL_… variables over rollcall.toml; raises Refused."""
    from rollcall.compose.settings import load_settings

    found = load_settings()
    _keep_private(found.state())
    return found


def _keep_private(state: "Path") -> None:
    """Remove other users' access, which another umask has left."""
    from rollcall.compose.terminal import say
    from rollcall.schemas.private_folders import tighten

    ours = [state / name for name in OURS]
    if state.is_dir() and {path.name.partition(".wiped-")[0] for path in state.iterdir()} <= OURS:
        ours.append(state)
    for directory in ours:
        try:
            if tighten(directory):
                say(f"rollcall: {directory} was open to other users; now 0700", err=True)
        except OSError as error:
            msg = f"rollcall: {directory} is open to other users ({error.strerror})"
            say(f"{msg}; have its owner `chmod 700` it", err=True)


def cluster() -> "Cluster":
    """Return the cluster; clients are made on first use. Raises Refused if none is named or up."""
    known = CLUSTER.get()
    if known is not None:
        return known
    from rollcall.compose.cluster import cluster_of
    from rollcall.compose.log_setup import set_up

    set_up("cli", "cli")
    made = cluster_of(settings())
    CLUSTER.set(made)
    return made


def signature() -> str:
    """Return the name of the user who runs the command; empty if the system has none."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):  # a container without users
        return ""
