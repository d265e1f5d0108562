"""Rows as Parquet, built lot by lot, which bounds the memory; the rewards of one rescoring."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.tables import rows
from rollcall.consumers.tables.rows import OWNERS, SCORES, TRAJECTORIES, TURNS, Row
from rollcall.schemas.atomic_files import appear_durably, atomic_path, require_unused
from rollcall.schemas.messages import ScoredTrajectory, Trajectory
from rollcall.schemas.packed import logprobs_of

DAY_MS = 86_400_000
COMPRESSION = "zstd"
LOT_BYTES = 16 << 20
"""Memory for rows that are not written yet."""
ROW_BYTES, TURN_BYTES = 1000, 250
"""The memory of a row beside its text."""
TEXT, NUMBER = pa.string(), pa.float64()


def _rows(**columns: Any) -> Any:
    return pa.list_(pa.struct(list(columns.items())))


TYPES: Mapping[str, Any] = {
    "string": TEXT,
    "strings": pa.list_(TEXT),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": NUMBER,
    "time": pa.timestamp("ms"),
    "rewards": _rows(scorer=TEXT, value=NUMBER, weight=NUMBER, reason=TEXT),
    "token_scores": _rows(scorer=TEXT, sequence=pa.int32(), scores=pa.list_(pa.float32())),
}
"""Times are UTC without a time zone, so that readers need no table of time zones."""


def _schema(columns: Mapping[str, str]) -> Any:
    return pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])


SCHEMAS: Mapping[str, Any] = {
    "trajectories": _schema(TRAJECTORIES),
    "turns": _schema({**OWNERS, **TURNS}),
    "scores": _schema(SCORES),
}
"""The schemas by table."""


def day_of(at_ms: int) -> str:
    """Return the folder of a record's day, in UTC, in the style of Hive."""
    return _day(max(0, at_ms) // DAY_MS)


@cache
def _day(number: int) -> str:
    return f"day={datetime.fromtimestamp(number * DAY_MS / 1000, UTC):%Y-%m-%d}"


@dataclass
class Lot:
    """Rows of one day, in memory until they are written."""

    trajectories: list[Row] = field(default_factory=list)
    turns: list[Row] = field(default_factory=list)
    scores: list[Row] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """The number, in this lot, of each turn's trajectory."""
    size_bytes: int = 0
    """The approximate memory of the rows as Python objects."""

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
        """Yield the tables that have rows, as Arrow tables."""
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
    """Build a table by columns. Raises ValueError if rows and names differ in number."""
    arrays = [
        pa.array(values, TYPES[kind])
        for values, kind in zip(zip(*taken, strict=True), columns.values(), strict=True)
    ]
    return pa.table(arrays, schema=_schema(columns))


@dataclass(eq=False)
class ParquetWriters:
    """One file for each table and day below a directory; all appear when they are complete.

    Until `finish` the files are hidden beside their places, under the writer's own mark. Rows are
    written in lots; the end of a lot depends only on the rows, so the same rows give the same
    files. A file that exists already is left as it is.
    """

    directory: Path
    name: str
    mark: str
    lot_bytes: int = LOT_BYTES
    rows: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    """Sizes of the finished files."""
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
        """Write the largest lots while all together exceed the limit."""
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
        """Write the remaining rows, and rename every file to its final name, durably."""
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
        """Remove the unfinished files."""
        for path, writer in self._open.items():
            writer.close()
            self._hidden(path).unlink(missing_ok=True)
        self._open.clear()
        self._lots.clear()


def last_offset(path: Path) -> int:
    """Return the highest offset of the rows of one file."""
    offsets = pq.read_table(path, columns=["offset"])["offset"]
    return int(max(offsets.to_pylist(), default=-1))


def sweep(directory: Path, name: str) -> None:
    """Remove unfinished files of a killed worker of this name.

    If that worker is still alive, it finds its files missing and ends; another one of its name,
    with its own mark, writes them again.
    """
    for left in directory.glob(f"*/day=*/.*.parquet.{escape(name)}.*"):
        left.unlink(missing_ok=True)


REWARDS_FILE = "rewards.parquet"
ROWS_AT_ONCE = 500
REWARD_COLUMNS: Mapping[str, Any] = {
    **dict.fromkeys(("rollout_id", "run_id", "policy_id", "group_id"), TEXT),
    "attempt": TYPES["int32"],
    "scoring_id": TEXT,
    "total": NUMBER,
    "reason": TEXT,
    "rewards": _rows(scorer=TEXT, value=NUMBER, reason=TEXT, weight=NUMBER),
    "source_topic": TEXT,
    "source_partition": TYPES["int32"],
    "source_offset": TYPES["int64"],
    "token_scores": TYPES["token_scores"],
}


@contextmanager
def rewards_file(directory: Path) -> Iterator[Callable[[ScoredTrajectory], None]]:
    """Yield a function that adds rows to `rewards.parquet`; the file appears once complete.

    Raises Refused if the directory exists and is not empty.
    """
    require_unused(directory, "--parquet")
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    schema = pa.schema(list(REWARD_COLUMNS.items()))
    with (
        atomic_path(directory / REWARDS_FILE) as hidden,
        pq.ParquetWriter(hidden, schema) as writer,
    ):

        def write() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def add(scored: ScoredTrajectory) -> None:
            rows.append(_row(scored))
            if len(rows) >= ROWS_AT_ONCE:
                write()

        yield add
        write()


def _row(scored: ScoredTrajectory) -> dict[str, Any]:
    trajectory, request = scored.trajectory, scored.trajectory.request
    return {
        "rollout_id": trajectory.rollout_id,
        "run_id": request.run_id if request else None,
        "policy_id": request.policy_id if request else None,
        "group_id": request.group_id if request else None,
        "attempt": trajectory.attempt,
        "scoring_id": scored.scoring_id,
        "total": scored.total,
        "reason": scored.reason,
        "rewards": [asdict(reward) for reward in scored.rewards],
        "source_topic": scored.source_topic,
        "source_partition": scored.source_partition,
        "source_offset": scored.source_offset,
        "token_scores": [
            {"scorer": each.scorer, "sequence": each.sequence, "scores": logprobs_of(each.scores)}
            for each in scored.token_scores
        ],
    }
