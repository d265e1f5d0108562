"""What a worker waits for at its start: broker and registry, then topics and schemas that fit.

A registry that was emptied, or made anew, deals its ids again: old records would be read with
another schema or none, and a worker would bury a whole history as unreadable. The log itself knows
better: the newest records that our own workers wrote must be readable.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from compose.cluster import Cluster, require_topics
from consumers.log.protocols import Log
from consumers.log.reading import read_all
from schemas.errors import RegistryEmptied, Unavailable, UnknownSchema, WireError
from schemas.messages import Event, Trajectory

RETRY_S = 1.0
GIVE_UP_S = 600.0

T = TypeVar("T")

log = structlog.get_logger()


def wait_until_fit(cluster: Cluster) -> None:
    """Return when the cluster answers and has what the manifest says; raises TopicsDiffer."""
    patiently(lambda: require_topics(cluster))


def patiently(
    call: Callable[[], T], *, retry_s: float = RETRY_S, give_up_s: float = GIVE_UP_S
) -> T:
    """Call again while broker or registry is away; said once, given up after ten minutes.

    What is put together at a worker's start goes through here: either may leave at any moment.
    """
    until, warned = time.monotonic() + give_up_s, False
    while True:
        try:
            return call()
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            if not warned:
                log.warning("waiting_for_cluster", error=str(error))
                warned = True
            time.sleep(retry_s)


def check_readable(cluster: Cluster) -> None:
    """Raise RegistryEmptied where no newest record of a topic has a schema that is known."""
    topics = cluster.topics
    for topic, record in ((topics.events, Event), (topics.trajectories, Trajectory)):
        reason = _unreadable(cluster, topic, record)
        if reason:
            msg = (
                f"the registry at {cluster.registry_url} cannot be the one that {topic} was "
                f"written with: {reason}. Bring its data back; log and registry live and die "
                "together, so where they are lost take another prefix or `rollcall down --wipe`"
            )
            raise RegistryEmptied(msg)


def _unreadable(cluster: Cluster, topic: str, expected: type) -> str:
    """Why nothing can be read; empty where something can, or nothing is there."""
    log: Log = cluster.log
    bounds = log.bounds(topic)
    starts = {(topic, number): max(low, end - 1) for number, (low, end) in bounds.items()}
    reason = ""
    for record in read_all(log, [topic], starts):
        try:
            cluster.codec.decode(record.value, expected)
        except UnknownSchema as error:
            reason = str(error)
        except WireError:
            continue  # somebody's bad bytes, which say nothing of the registry
        else:
            return ""
    return reason
