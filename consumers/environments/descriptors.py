"""File descriptors of this process: how many of them connections of agents may take."""

import resource

KEPT = 512
"""For the log, files, boxes and processes of the worker."""
MOST = 65_536
"""The soft limit is raised to the hard one, at most so far."""


def room_for_connections() -> int:
    """Raise the soft limit of descriptors as far as it goes; return how many are for connections.

    A quarter of a small limit is still for others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = MOST if unlimited else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    return max(1, min(limit - KEPT, limit * 3 // 4))
