"""Exports a range of history as Parquet, with a folder for each table and day.

The format is that of the archive group (`rollcall.consumers.tables`): the trajectories of the
range, their turns, and all their scores, even those written after the range ended. The directory
appears when all of it is written; a killed process leaves a hidden folder beside it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rollcall.consumers.history.reading.ranges import range_behind
from rollcall.consumers.history.reading.selection import FirstOfEach, Selection
from rollcall.consumers.tables.parquet import SCHEMAS, ParquetWriters
from rollcall.consumers.tables.rows import key_of
from rollcall.schemas.atomic_files import atomic_path, require_unused
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Trajectory

FILE = "export.parquet"
MARK = "part"


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export, by table."""

    directory: str
    rows: dict[str, int]
    size_bytes: dict[str, int]


def export(
    selection: Selection, directory: Path, progress: Callable[[int], None] = lambda records: None
) -> Export:
    """Write a range into a new or empty directory; raises Refused for any other.

    `progress` is called with the number of records taken, after each.
    """
    with _new_directory(directory) as hidden:
        writers = ParquetWriters(hidden, FILE, MARK)
        try:
            _fill(writers, selection, progress)
            writers.finish()
        except BaseException:
            writers.abandon()
            raise
    rows = {name: writers.rows[name] for name in SCHEMAS}
    return Export(str(directory), rows, {name: writers.size_bytes[name] for name in SCHEMAS})


@contextmanager
def _new_directory(directory: Path) -> Iterator[Path]:
    """Provide a hidden folder that becomes the directory on success."""
    directory = directory.absolute()
    require_unused(directory, "--parquet")
    with atomic_path(directory) as hidden:
        try:
            hidden.mkdir(parents=True)
        except OSError as error:
            msg = f"cannot write to {directory.parent}: {error.strerror}"
            raise Refused(msg) from error
        yield hidden


def _fill(writers: ParquetWriters, selection: Selection, progress: Callable[[int], None]) -> None:
    log, topics, taken = selection.history.log, selection.history.topics, 0
    ends = FirstOfEach[Trajectory](key_of)
    first_ms = 0
    topic_id = log.topic_id(topics.trajectories)
    for record, trajectory in selection.trajectories():
        writers.trajectory(record, topic_id, trajectory)
        ends.add(trajectory)
        first_ms = min(first_ms or record.timestamp_ms, record.timestamp_ms)
        progress(taken := taken + 1)
    topic_id = log.topic_id(topics.scored)
    with suppress(Refused):  # the range is empty: no scores yet
        for record, scored in replace(selection, span=range_behind(first_ms)).scored():
            if scored.trajectory in ends:
                writers.scored(record, topic_id, scored)
                progress(taken := taken + 1)
