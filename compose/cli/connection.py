"""What a command works with: the settings of this directory, and the cluster that they name.

Whoever calls the command line as a function, `app(words, obj=cluster)`, hands over another one.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from compose.settings import Settings

CLUSTER: ContextVar["Cluster | None"] = ContextVar("cluster", default=None)
"""That of the command at hand: handed over, or made when it is first asked for."""


def settings() -> "Settings":
    """Command line over ROLLCALL_… variables over rollcall.toml; raises Refused."""
    from compose.settings import load_settings

    return load_settings()


def cluster() -> "Cluster":
    """Clients are made when they are asked for; raises Refused where nothing is named nor up."""
    known = CLUSTER.get()
    if known is not None:
        return known
    from compose.cluster import cluster_of
    from compose.log_setup import set_up

    set_up("cli", "cli")
    made = cluster_of(settings())
    CLUSTER.set(made)
    return made
