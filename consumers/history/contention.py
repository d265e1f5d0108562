"""Whether anybody is at work on a cluster, so that whoever only reads history can give way."""

import time
from typing import TYPE_CHECKING

from consumers.history.rate_limit import GivingWay, Pace
from consumers.log.protocols import Log
from schemas.errors import Unavailable
from schemas.topics import Topics

if TYPE_CHECKING:
    from producers.admin import Admin

RATE = 300.0
"""Records a second while others work, unless said otherwise: of 20 kB each they take a tenth of a
core. A run that keeps two cores busy is slower by 5 % beside it (by 8 % at 500 a second)."""
RECENT_S = 10.0


def pace_of(log: Log, admin: "Admin", topics: Topics, rate: float | None) -> Pace:
    """So many records a second, 0 without limit; None gives way while others are at work."""
    if rate is not None:
        return Pace(rate)
    return GivingWay(RATE, lambda: others_at_work(log, admin, topics))


def others_at_work(log: Log, admin: "Admin", topics: Topics) -> bool:
    """Whether something was written of late, or a group that has members has lag.

    Where the broker does not say, somebody is.
    """
    try:
        return _written(log, topics) or _behind(log, admin, topics)
    except Unavailable:
        return True


def _written(log: Log, topics: Topics) -> bool:
    """Whether the journal or a trainer has moved; readers write neither."""
    moving = [topics.events, topics.train_steps]
    since = log.offsets_for_times(moving, int((time.time() - RECENT_S) * 1000))
    ends = {(topic, n): end for topic in moving for n, (_, end) in log.bounds(topic).items()}
    return any(since[tp] < end for tp, end in ends.items())


def _behind(log: Log, admin: "Admin", topics: Topics) -> bool:
    """Whether a member of some group has not finished all of its partitions."""
    groups = [name for name in log.group_names() if name.startswith(topics.prefix)]
    held = {(m.group, topic, n) for m in admin.members(groups) for topic, n in m.partitions}
    bounds = {topic: log.bounds(topic) for _, topic, _ in held}
    done = {(group, topic): log.committed(group, topic) for group, topic, _ in held}
    for group, topic, number in held:
        low, end = bounds[topic][number]
        if done[group, topic].get(number, low) < end:
            return True
    return False
