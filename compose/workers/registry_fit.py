"""Whether the registry is the one that the log was written with.

A registry that was emptied, or made anew, deals its ids again: old records would be read with
another schema or none, and a worker would bury a whole history as unreadable. The log itself knows
better: the newest records that our own workers wrote must be readable.
"""

from compose.cluster import Cluster
from consumers.log.protocols import Log, read_all
from schemas.errors import RegistryEmptied, UnknownSchema, WireError
from schemas.messages import Event, Trajectory


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
    for record in read_all(log.reader([topic], starts)):
        try:
            cluster.codec.decode(record.value, expected)
        except UnknownSchema as error:
            reason = str(error)
        except WireError:
            continue  # somebody's bad bytes, which say nothing of the registry
        else:
            return ""
    return reason
