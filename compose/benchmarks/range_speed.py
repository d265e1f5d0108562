"""The speed of `rollcall export` and `rollcall rescore` over a range of history.

One process, a warm broker, no rate limit; the history is that of `scan`. An export counts like
`scan_records_per_s`, so that the two can be compared: in records of the history, of which only
trajectories and scores are read. Its ceiling is the bare read of these two topics, without
decoding, rows and files. A rescoring, with a constant scorer, lasts until the acks of its rewards,
and compares them with the existing ones; its ceiling reads and decodes the same trajectories once.
"""

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.own_cluster import own_cluster
from rollcall.compose.benchmarks.scan import RECORDS, fill
from rollcall.compose.cluster import Cluster
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.compose.workers.rescorer import Rescorer
from rollcall.consumers.history.reading.ranges import Range, filled_extent
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.export import export
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_between
from rollcall.schemas.messages import Trajectory

EXPORTED = 2000
RESCORED = 6000


def export_records_per_s(settings: Settings, *, rollouts: int = EXPORTED) -> Figure:
    """Measure an export of `rollouts` rollouts of eight turns."""
    with own_cluster(settings) as cluster, tempfile.TemporaryDirectory() as folder:
        fill(cluster, rollouts)
        topics = (cluster.topics.trajectories, cluster.topics.scored)
        bare_s, _ = timed(lambda: [sum(map(len, _polls(cluster, topic))) for topic in topics])
        selection, out = Selection(cluster, Range()), Path(folder) / "out"
        took_s, exported = timed(lambda: export(selection, out))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows, total = exported.rows, sum(exported.rows.values())
    note = (
        f"{rows['trajectories'] + rows['scores']:,} records read, {total:,} rows "
        f"written in {took_s:.1f} s ({total / took_s:,.0f} rows/s), peak memory {peak:,.0f} MB"
    )
    records = rollouts * RECORDS
    return Figure(records / took_s, "records/s", records / bare_s, notes=(note,))


def rescore_trajectories_per_s(settings: Settings, *, rollouts: int = RESCORED) -> Figure:
    """Measure a rescoring of `rollouts` rollouts of eight turns, 64 tokens each."""
    with own_cluster(settings) as cluster:
        fill(cluster, rollouts)
        bare_s, _ = timed(lambda: _decode(cluster))
        only_compared_s, _ = timed(lambda: _rescore(cluster, rollouts, dry_run=True))
        took_s, _ = timed(lambda: _rescore(cluster, rollouts, dry_run=False))
    note = f"{rollouts / only_compared_s:,.0f} trajectories/s where nothing is written (--dry-run)"
    return Figure(rollouts / took_s, "trajectories/s", rollouts / bare_s, notes=(note,))


def same(trajectory: Trajectory) -> float:
    """Score with a constant, at no cost."""
    del trajectory
    return 1.0


def _polls(cluster: Cluster, topic: str) -> Iterator[list[Record]]:
    return read_between(cluster.log, *filled_extent(cluster.log, topic, Range()))


def _decode(cluster: Cluster) -> None:
    for records in _polls(cluster, cluster.topics.trajectories):
        for record in records:
            cluster.codec.decode(record.value, Trajectory)


def _rescore(cluster: Cluster, rollouts: int, *, dry_run: bool) -> None:
    """Rescore all. Raises ServicesError for a wrong result."""
    rescorer = Rescorer([f"{__name__}:{same.__name__}"], dry_run=dry_run)
    rescoring = rescorer.rescore(cluster, Selection(cluster, Range()))
    compared = [agreement.agree for agreement in rescoring.agreements]
    if (rescoring.rewarded, compared) != (rollouts, [rollouts]):
        msg = f"{rescoring.rewarded:,} of {rollouts:,} rewarded, {compared} agree with the old ones"
        raise ServicesError(msg)
