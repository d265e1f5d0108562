"""Rows as Parquet: columns are built when a lot is full, so that what is held stays small."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from consumers.log.protocols import Record
from consumers.tables import rows
from consumers.tables.rows import OWNERS, SCORES, TRAJECTORIES, TURNS, Row
from schemas.messages import ScoredTrajectory, Trajectory
from schemas.whole_files import appear_durably

DAY_MS = 86_400_000
COMPRESSION = "zstd"
LOT_BYTES = 16 << 20
"""Rows in hand at once."""
ROW_BYTES, TURN_BYTES = 1000, 250
"""What a row takes beside its text."""
TYPES: Mapping[str, Any] = {
    "string": pa.string(),
    "strings": pa.list_(pa.string()),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "time": pa.timestamp("ms"),
    "rewards": pa.list_(pa.struct([
        ("scorer", pa.string()), ("value", pa.float64()), ("weight", pa.float64()),
        ("reason", pa.string()),
    ])),
    "token_scores": pa.list_(pa.struct([
        ("scorer", pa.string()), ("sequence", pa.int32()), ("scores", pa.list_(pa.float32())),
    ])),
}  # fmt: skip
"""Times are UTC, without saying so: whoever reads them needs no table of time zones."""


def _schema(columns: Mapping[str, str]) -> Any:
    return pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])


SCHEMAS: Mapping[str, Any] = {
    "trajectories": _schema(TRAJECTORIES),
    "turns": _schema({**OWNERS, **TURNS}),
    "scores": _schema(SCORES),
}
"""By table."""


def day_of(at_ms: int) -> str:
    """The folder of a record's day, in UTC, as Hive would name it."""
    return _day(max(0, at_ms) // DAY_MS)


@cache
def _day(number: int) -> str:
    return f"day={datetime.fromtimestamp(number * DAY_MS / 1000, UTC):%Y-%m-%d}"


@dataclass
class Lot:
    """Rows of one day, in hand until somebody writes them."""

    trajectories: list[Row] = field(default_factory=list)
    turns: list[Row] = field(default_factory=list)
    scores: list[Row] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """Of each turn the number of its trajectory in this lot."""
    size_bytes: int = 0
    """About what the rows take as Python's objects."""

    def take_trajectory(self, record: Record, topic_id: str, trajectory: Trajectory) -> None:
        number = len(self.trajectories)
        place = rows.place_of(record, topic_id)
        self.trajectories.append(rows.trajectory_row(place, trajectory))
        before = len(self.turns)
        self.turns.extend(rows.turn_rows(trajectory))
        added = len(self.turns) - before
        self.owners.extend([number] * added)
        self.size_bytes += len(record.value or b"") + ROW_BYTES + added * TURN_BYTES

    def take_scored(self, record: Record, topic_id: str, scored: ScoredTrajectory) -> None:
        self.scores.append(rows.score_row(rows.place_of(record, topic_id), scored))
        self.size_bytes += ROW_BYTES + sum(len(each.scores) for each in scored.token_scores)

    def tables(self) -> Iterator[tuple[str, Any]]:
        """What there is of each table, as Arrow has it."""
        if self.trajectories:
            trajectories = _table(self.trajectories, TRAJECTORIES)
            yield "trajectories", trajectories
            if self.turns:
                owned = trajectories.select(list(OWNERS)).take(pa.array(self.owners, pa.int64()))
                own = _table(self.turns, TURNS)
                columns = [*owned.columns, *own.columns]
                yield "turns", pa.table(columns, schema=SCHEMAS["turns"])
        if self.scores:
            yield "scores", _table(self.scores, SCORES)


def _table(taken: list[Row], columns: Mapping[str, str]) -> Any:
    """Column by column; a row and the names agree in number, or this raises."""
    arrays = [
        pa.array(values, TYPES[kind])
        for values, kind in zip(zip(*taken, strict=True), columns.values(), strict=True)
    ]
    return pa.table(arrays, schema=_schema(columns))


@dataclass(eq=False)
class ParquetWriters:
    """One file for each table and day below a directory, which appear when all are whole.

    Until `finish` the files lie hidden beside their places, under the writer's own mark. Rows are
    gathered in lots; where a lot ends depends on the rows alone, so the same rows are the same
    files. A file that is there already is left as it is.
    """

    directory: Path
    name: str
    mark: str
    lot_bytes: int = LOT_BYTES
    rows: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    """Of the files, once they are finished."""
    _lots: dict[str, Lot] = field(default_factory=dict)
    _open: dict[Path, Any] = field(default_factory=dict)

    def trajectory(self, record: Record, topic_id: str, trajectory: Trajectory) -> None:
        self._lot(record).take_trajectory(record, topic_id, trajectory)
        self._write_full()

    def scored(self, record: Record, topic_id: str, scored: ScoredTrajectory) -> None:
        self._lot(record).take_scored(record, topic_id, scored)
        self._write_full()

    def _lot(self, record: Record) -> Lot:
        return self._lots.setdefault(day_of(record.timestamp_ms), Lot())

    def _write_full(self) -> None:
        """Let go of the largest lot when all together are too much to hold."""
        while sum(lot.size_bytes for lot in self._lots.values()) > self.lot_bytes:
            day = max(self._lots, key=lambda each: self._lots[each].size_bytes)
            self._write(day, self._lots.pop(day))

    def _write(self, day: str, lot: Lot) -> None:
        for table_name, table in lot.tables():
            folder = self.directory / table_name / day
            path = folder / self.name
            if path not in self._open:
                folder.mkdir(parents=True, exist_ok=True)
                self._open[path] = pq.ParquetWriter(
                    self._hidden(path), SCHEMAS[table_name], compression=COMPRESSION
                )
            self._open[path].write_table(table)
            self.rows[table_name] += table.num_rows

    def _hidden(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.{self.mark}")

    def finish(self) -> None:
        """Write what is in hand, and let every file appear under its name, on the disk."""
        for day in sorted(self._lots):
            self._write(day, self._lots.pop(day))
        for path, writer in self._open.items():
            writer.close()
            hidden = self._hidden(path)
            self.size_bytes[path.parts[-3]] += hidden.stat().st_size
            if path.exists():
                hidden.unlink()
            else:
                self._appear(hidden, path)
        self._open.clear()

    def _appear(self, hidden: Path, path: Path) -> None:
        appear_durably(hidden, path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        for path, writer in self._open.items():
            writer.close()
            self._hidden(path).unlink(missing_ok=True)
        self._open.clear()
        self._lots.clear()


def last_offset(path: Path) -> int:
    """The highest offset of the rows of one file."""
    offsets = pq.read_table(path, columns=["offset"])["offset"]
    return int(max(offsets.to_pylist(), default=-1))


def sweep(directory: Path, name: str) -> None:
    """Remove what a worker of this name left unfinished when it was killed.

    One that lives nevertheless finds its files gone and ends; another under its name, with a mark
    of its own, writes them again.
    """
    for left in directory.glob(f"*/day=*/.*.parquet.{escape(name)}.*"):
        left.unlink(missing_ok=True)
