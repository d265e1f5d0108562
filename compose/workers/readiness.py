"""Waiting at a worker's start: for the broker and the registry, then for fitting topics."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from compose.cluster import Cluster
from producers import provision
from schemas.errors import Unavailable
from schemas.topics import wanted

RETRY_S = 1.0
GIVE_UP_S = 600.0

T = TypeVar("T")

log = structlog.get_logger()


def wait_until_fit(cluster: Cluster) -> None:
    """Return when the cluster answers and has what the manifest says; raises TopicsDiffer."""
    topics = wanted(cluster.settings.prefix, [])
    patiently(lambda: provision.require(cluster.admin, cluster.registry, topics))


def patiently(
    call: Callable[[], T], *, retry_s: float = RETRY_S, give_up_s: float = GIVE_UP_S
) -> T:
    """Call again while broker or registry is away; said once, given up after ten minutes.

    What is put together at a worker's start goes through here: either may leave at any moment.
    """
    until, said = time.monotonic() + give_up_s, False
    while True:
        try:
            return call()
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            if not said:
                log.warning("waiting_for_cluster", error=str(error))
                said = True
            time.sleep(retry_s)
