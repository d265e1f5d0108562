"""File descriptors of this process, and how many of them connections of agents may use."""

import resource

KEPT = 512
"""Descriptors for the log, files, boxes and processes of the worker."""
MOST = 65_536
"""The soft limit is raised to the hard one, up to this number."""


def room_for_connections() -> int:
    """Raise the soft limit of descriptors as far as possible; return the number for connections.

    A quarter of a small limit is kept for other uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = MOST if unlimited else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    return max(1, min(limit - KEPT, limit * 3 // 4))
