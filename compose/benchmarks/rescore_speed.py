"""How fast `rollcall rescore` goes through trajectories, to the acks of the rewards it has written.

The trajectories are those of whole rollouts of the workload, and they have rewards to compare with.
The scorer gives every one the same. The ceiling reads and decodes the same trajectories once.
"""

import time
from collections.abc import Callable
from typing import Any

from compose.benchmarks import scan
from compose.benchmarks.figure import Figure
from compose.benchmarks.own_cluster import own_cluster
from compose.services.service_errors import ServicesError
from compose.settings import Settings
from compose.workers.rescorer import Rescorer
from consumers.history.ranges import Range, filled_extent
from consumers.history.selection import Selection
from consumers.log.reading import read_between
from schemas.messages import Trajectory

ROLLOUTS = 6000


def same(trajectory: Trajectory) -> float:
    """A scorer that costs nothing."""
    del trajectory
    return 1.0


def trajectories_per_s(settings: Settings, *, rollouts: int = ROLLOUTS) -> Figure:
    """Rescore so many rollouts of eight turns, 64 tokens each."""
    with own_cluster(settings) as cluster:
        scan.fill(cluster.log, cluster.codec, cluster.topics, rollouts)
        bare_s = _timed(lambda: _bare(cluster))
        only_compared_s = _timed(lambda: _rescored(cluster, rollouts, dry_run=True))
        took_s = _timed(lambda: _rescored(cluster, rollouts, dry_run=False))
    note = f"{rollouts / only_compared_s:,.0f} trajectories/s where nothing is written (--dry-run)"
    return Figure(rollouts / took_s, "trajectories/s", rollouts / bare_s, notes=(note,))


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _bare(cluster: Any) -> None:
    topic = cluster.topics.trajectories
    for batch in read_between(cluster.log, *filled_extent(cluster.log, topic, Range())):
        for record in batch:
            cluster.codec.decode(record.value, Trajectory)


def _rescored(cluster: Any, rollouts: int, *, dry_run: bool) -> None:
    """Raises ServicesError where what came of it is not what must."""
    scorer = f"{__name__}:{same.__name__}"
    rescorer = Rescorer([scorer], dry_run=dry_run)
    rescoring = rescorer.rescore(cluster, Selection(cluster, Range()))
    compared = [agreement.agree for agreement in rescoring.agreements]
    if (rescoring.rewarded, compared) != (rollouts, [rollouts]):
        msg = (
            f"{rescoring.rewarded:,} of {rollouts:,} rewarded, {compared} agree with what was there"
        )
        raise ServicesError(msg)
