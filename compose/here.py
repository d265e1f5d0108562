"""The programs as this process can run them, to fold again what was recorded."""

import threading
from random import Random
from typing import TYPE_CHECKING

from consumers.agents.fold.world import World
from consumers.agents.programs import program_of
from consumers.time_guard import Guard

if TYPE_CHECKING:
    from compose.cluster import Cluster


def watched_world(cluster: "Cluster") -> World:
    """On the main thread a program that does not come back is ended, as it was in its worker."""
    guard = Guard("the program", cluster.settings.agents.program_timeout_s)
    if threading.current_thread() is threading.main_thread():
        guard.watch()
    return World(program_of, Random, guard)
