"""Whether anybody is at work on a cluster, so that whoever only reads history can give way."""

import time
from typing import TYPE_CHECKING

from schemas.errors import Unavailable

if TYPE_CHECKING:
    from compose.cluster import Cluster

RECENT_S = 10.0


def others_at_work(cluster: "Cluster") -> bool:
    """Whether something was written of late, or a group that has members has lag.

    Where the broker does not say, somebody is.
    """
    try:
        return _written(cluster) or _behind(cluster)
    except Unavailable:
        return True


def _written(cluster: "Cluster") -> bool:
    """Whether the journal or a trainer has moved; readers write neither."""
    log, topics = cluster.log, [cluster.topics.events, cluster.topics.train_steps]
    since = log.offsets_for_times(topics, int((time.time() - RECENT_S) * 1000))
    ends = {(topic, n): end for topic in topics for n, (_, end) in log.bounds(topic).items()}
    return any(since[tp] < end for tp, end in ends.items())


def _behind(cluster: "Cluster") -> bool:
    """Whether a member of some group has not finished all of its partitions."""
    log, prefix = cluster.log, cluster.settings.prefix
    groups = [name for name in log.group_names() if name.startswith(prefix)]
    held = {(m.group, topic, n) for m in cluster.admin.members(groups) for topic, n in m.partitions}
    bounds = {topic: log.bounds(topic) for _, topic, _ in held}
    done = {(group, topic): log.committed(group, topic) for group, topic, _ in held}
    for group, topic, number in held:
        low, end = bounds[topic][number]
        if done[group, topic].get(number, low) < end:
            return True
    return False
