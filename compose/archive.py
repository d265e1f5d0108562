"""`rollcall export`: a range of history as Parquet, a folder for each table and day.

What lies there is what the archive group writes too (`consumers.tables`): the trajectories of the
range, their turns, and whatever scorers made of them, also after the range ended. The directory
appears when all of it is written; whoever is killed before leaves a hidden folder beside it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from compose import ranges
from compose.files import refuse_used
from compose.ranges import Range
from consumers.tables.parquet import SCHEMAS, Writers
from schemas.errors import Refused
from schemas.messages import Trajectory

if TYPE_CHECKING:
    from compose.cluster import Cluster

FILE = "export.parquet"
MARK = "part"

Told = Callable[[int], None]
"""Told how many records have been taken."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, by table."""

    directory: str
    rows: dict[str, int]
    size_bytes: dict[str, int]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        shown = Table("table", "rows", "MB", title=self.directory, title_justify="left")
        for column in (1, 2):
            shown.columns[column].justify = "right"
        for name, rows in self.rows.items():
            shown.add_row(name, f"{rows:,}", f"{self.size_bytes[name] / 1e6:,.2f}")
        return shown


def export(
    cluster: "Cluster",
    chosen: Range,
    directory: Path,
    *,
    rate: float | None = None,
    progress: Told = lambda done: None,
) -> Exported:
    """Write a range into a directory that is new or empty; raises Refused where it is not."""
    with _appearing(directory) as hidden:
        writers = Writers(hidden, FILE, MARK)
        try:
            _fill(writers, cluster, chosen, rate, progress)
            writers.finish()
        except BaseException:
            writers.abandon()
            raise
    rows = {name: writers.rows[name] for name in SCHEMAS}
    return Exported(str(directory), rows, {name: writers.size_bytes[name] for name in SCHEMAS})


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """A hidden folder that becomes the directory when all has gone well."""
    directory = directory.absolute()
    refuse_used(directory, "--parquet")
    hidden = directory.with_name(f".{directory.name}.{os.getpid()}.{MARK}")
    try:
        hidden.mkdir(parents=True)
    except OSError as error:
        msg = f"cannot write to {directory.parent}: {error.strerror}"
        raise Refused(msg) from error
    try:
        yield hidden
        hidden.replace(directory)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _fill(
    writers: Writers, cluster: "Cluster", chosen: Range, rate: float | None, progress: Told
) -> None:
    topics, taken = cluster.topics, 0
    written: set[int] = set()
    first_ms = 0
    topic_id = cluster.log.topic_id(topics.trajectories)
    for record, trajectory in ranges.trajectories(cluster, chosen, rate=rate):
        writers.trajectory(record, topic_id, trajectory)
        written.add(_name(trajectory))
        first_ms = min(first_ms or record.timestamp_ms, record.timestamp_ms)
        progress(taken := taken + 1)
    topic_id = cluster.log.topic_id(topics.scored)
    with suppress(Refused):  # nothing lies there: nobody has scored yet
        for record, scored in ranges.scored(cluster, ranges.behind(first_ms), rate=rate):
            if _name(scored.trajectory) in written:
                writers.scored(record, topic_id, scored)
                progress(taken := taken + 1)


def _name(trajectory: Trajectory) -> int:
    """Eight bytes for the end that a trajectory tells of."""
    end = trajectory.journal_partition, trajectory.last_offset
    return hash((trajectory.rollout_id, trajectory.attempt, *end))
