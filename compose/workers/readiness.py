"""The wait of a worker at its start: for broker and registry, then for topics and schemas.

A registry that was emptied or recreated assigns its ids again: old records would be read with
another schema or none, and a worker would send a whole history to the dead letters. This is
detected by the log: the newest records that our own workers wrote must be readable.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from rollcall.compose.cluster import Cluster, require_topics
from rollcall.consumers.log.protocols import Log
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.errors import RegistryEmptied, Unavailable, UnknownSchema, WireError
from rollcall.schemas.messages import Event, Trajectory

RETRY_S = 1.0
GIVE_UP_S = 600.0

T = TypeVar("T")

log = structlog.get_logger()


def wait_until_fit(cluster: Cluster) -> None:
    """Return when the cluster answers and matches the manifest; raises TopicsDiffer."""
    patiently(lambda: require_topics(cluster))


def patiently(
    call: Callable[[], T], *, retry_s: float = RETRY_S, give_up_s: float = GIVE_UP_S
) -> T:
    """Retry a call while broker or registry is unreachable; log it once, give up after 10 minutes.

    All set-up at a worker's start uses this, as either may become unreachable at any moment.
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
    """Raise RegistryEmptied if none of a topic's newest records has a known schema."""
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
    """Return why no record can be read; empty if one can, or there is none."""
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
            continue  # foreign bytes prove nothing about the registry
        else:
            return ""
    return reason
