"""Waiting at a worker's start: for the broker and the registry, then for fitting topics."""

import time

import structlog

from compose.cluster import Cluster
from producers import provision
from schemas.errors import Unavailable
from schemas.topics import wanted

RETRY_S = 1.0
GIVE_UP_S = 60.0

log = structlog.get_logger()


def wait_until_fit(cluster: Cluster) -> None:
    """Return when the cluster answers and has what the manifest says.

    Says once that it waits; raises Unavailable after a minute, TopicsDiffer at once.
    """
    until, said = time.monotonic() + GIVE_UP_S, False
    while True:
        try:
            topics = wanted(cluster.settings.prefix, [])
            provision.require(cluster.admin, cluster.registry, topics)
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            if not said:
                log.warning("waiting_for_cluster", error=str(error))
                said = True
            time.sleep(RETRY_S)
        else:
            return
