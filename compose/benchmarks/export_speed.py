"""How fast `rollcall export` goes through history: one process, from a warm broker, no rate limit.

Counted as `scan_records_per_s` counts, so that the two can be compared: in records of the history
that is exported, of which only trajectories and scores are read. The ceiling is the bare read of
these two topics: nothing decoded, no row made, no file written.
"""

import resource
import tempfile
import time
from pathlib import Path

from compose.benchmarks.figure import Figure
from compose.benchmarks.own_cluster import own_cluster
from compose.benchmarks.scan import RECORDS, fill
from compose.cluster import Cluster
from compose.settings import Settings
from consumers.history.export import export
from consumers.history.ranges import Range, filled_extent
from consumers.history.selection import Selection
from consumers.log.reading import read_between

ROLLOUTS = 2000


def records_per_s(settings: Settings, *, rollouts: int = ROLLOUTS) -> Figure:
    """Export so many rollouts of eight turns."""
    with own_cluster(settings) as cluster, tempfile.TemporaryDirectory() as folder:
        fill(cluster.log, cluster.codec, cluster.topics, rollouts)
        bare_s = _bare_s(cluster)
        began = time.monotonic()
        exported = export(Selection(cluster, Range()), Path(folder) / "out")
        took_s = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = sum(exported.rows.values())
    note = (
        f"{exported.rows['trajectories'] + exported.rows['scores']:,} records read, {rows:,} rows "
        f"written in {took_s:.1f} s ({rows / took_s:,.0f} rows/s), peak memory {peak:,.0f} MB"
    )
    records = rollouts * RECORDS
    return Figure(records / took_s, "records/s", records / bare_s, notes=(note,))


def _bare_s(cluster: Cluster) -> float:
    began = time.monotonic()
    for topic in (cluster.topics.trajectories, cluster.topics.scored):
        for _ in read_between(cluster.log, *filled_extent(cluster.log, topic, Range())):
            pass
    return time.monotonic() - began
