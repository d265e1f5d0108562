"""The archive group: what was written of trajectories and scores, as Parquet, exactly once.

The law: a partition is cut into spans at fixed offsets, [0, n), [n, 2n), ..., between two days of
the log's own time, where a span has been open for `HOLD_S`, and where the worker leaves. Each span
is one file for every table, named by the topic's incarnation, partition and where it begins. Files
appear by renaming when their span ends, and only then are its records finished: the committed
offset stands between spans. A kill before the commit brings the span back; the file that is there
says where it ended, and is left as it is.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import structlog

from consumers.log.protocols import Held, Log, Record, TopicPartition
from consumers.loop.partition_progress import PartitionProgress
from consumers.loop.role import WorkRole
from consumers.tables.parquet import ParquetWriters, day_of, last_offset, sweep
from schemas.errors import Unavailable, Unfit
from schemas.messages import ScoredTrajectory, Trajectory
from schemas.topics import Topics

SPAN = 1000
"""Offsets of one partition in a file."""
HOLD_S = 3600.0
"""A span that does not fill is closed after so long: retention takes what nobody has written."""
LOT_BYTES = 4 << 20
"""Held in memory of each partition at most."""

log = structlog.get_logger()


@dataclass
class Span:
    """One stretch of a partition that is being written."""

    begin: int
    end: int
    written: int
    """Where the file that is there already says that it ends; 0 where there is none."""
    day: str
    since: float
    """By the worker's clock."""
    writers: ParquetWriters
    records: list[Record] = field(default_factory=list)


class Archive(WorkRole):
    """Writes every partition it holds, span by span."""

    def __init__(
        self,
        name: str,
        log_: Log,
        topics: Topics,
        directory: Path,
        *,
        span: int = SPAN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.log = log_
        self.topics = [topics.trajectories, topics.scored]
        self.trajectories = topics.trajectories
        self.directory = directory
        self.span = span
        self.clock = clock
        self.spans: dict[TopicPartition, Span] = {}
        self.cuts: dict[TopicPartition, int] = {}
        """Where the last span of each partition ended, or reading began."""
        self.ids: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.mark = f"{_in_a_name(name)}.{os.getpid()}"
        with self._told():
            sweep(directory, _in_a_name(name))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise Unavailable where the directory is away or full: its worker begins again later.

        What else is raised, such as for a row that no table takes, is a record's own fault.
        """
        try:
            yield
        except OSError as error:
            msg = f"the archive in {self.directory} takes nothing: {error}"
            raise Unavailable(msg) from error

    def expects(self, topic: str) -> type:
        return Trajectory if topic == self.trajectories else ScoredTrajectory

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        self.ids[held.topic] = self.log.topic_id(held.topic)
        begin = super().assigned(held, progress)
        self.cuts[held.topic, held.partition] = begin
        return begin

    def dropped(self, progress: PartitionProgress) -> None:
        span = self.spans.pop((progress.topic, progress.number), None)
        if span is not None:
            with suppress(Unavailable), self._told():
                span.writers.abandon()

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, message in batch:
            with self._told():
                self._take(record, message)
            record.value = None  # the rows are kept instead

    def _take(self, record: Record, message: Any) -> None:
        span = self._span_of(record)
        topic_id = self.ids[record.topic]
        if record.topic == self.trajectories:
            span.writers.trajectory(record, topic_id, message)
        else:
            span.writers.scored(record, topic_id, message)
        span.records.append(record)

    def _span_of(self, record: Record) -> Span:
        """The span of a record, after the one before it was closed."""
        tp, day = (record.topic, record.partition), day_of(record.timestamp_ms)
        open_span = self.spans.get(tp)
        if open_span is not None and record.offset < open_span.end and day == open_span.day:
            return open_span
        if open_span is not None:
            self._close(tp)
        begin = record.offset // self.span * self.span
        end = begin + self.span
        if begin < self.cuts[tp]:
            begin = record.offset
        name = f"{self._prefix(tp, begin)}{end}.parquet"
        writers = ParquetWriters(self.directory, name, self.mark, LOT_BYTES)
        written = self._written_to(tp, begin)
        span = Span(begin, written or end, written, day, self.clock(), writers)
        return self.spans.setdefault(tp, span)

    def _prefix(self, tp: TopicPartition, begin: int) -> str:
        return f"{tp[0]}-{_in_a_name(self.ids[tp[0]])}-{tp[1]}-{begin}-"

    def _written_to(self, tp: TopicPartition, begin: int) -> int:
        """Where the span ended that begins here and was written before; 0 where none was."""
        table = "trajectories" if tp[0] == self.trajectories else "scores"
        found = self.directory.glob(f"{table}/day=*/{escape(self._prefix(tp, begin))}*.parquet")
        return max((last_offset(path) + 1 for path in found), default=0)

    def at_end(self, progress: PartitionProgress) -> None:
        """Behind the last record of a span there may be holes, and nothing else."""
        tp = progress.topic, progress.number
        if tp in self.spans and progress.end >= self.spans[tp].end:
            self._close(tp)

    def _close(self, tp: TopicPartition) -> None:
        """1. the files are whole and have their names  2. the records are finished."""
        with self._told():
            self._finish(tp)

    def _finish(self, tp: TopicPartition) -> None:
        span = self.spans.pop(tp)
        last = span.records[-1].offset + 1
        there = self._written_to(tp, span.begin)
        if there not in (span.written, last):
            span.writers.abandon()
            place = f"{tp[0]} {tp[1]}@{span.begin}"
            msg = (
                f"another archive worker wrote the span from {place} to {there}, this one to {last}"
            )
            raise Unfit(msg)
        try:
            span.writers.finish()
        except BaseException:
            self.spans[tp] = span  # to be abandoned with its partition
            raise
        self.cuts[tp] = last
        for record in span.records:
            record.closed = True
        self.counts["spans"] += 1
        self.counts.update(span.writers.rows)
        log.info("span_archived", topic=tp[0], partition=tp[1], offset=last)

    def tick(self) -> None:
        """Close what has been open for long."""
        now = self.clock()
        for tp in [tp for tp, span in self.spans.items() if now - span.since >= HOLD_S]:
            self._close(tp)

    def leave(self, *, patient: bool) -> None:
        """What is in hand is written, as far as it has come."""
        del patient
        for tp in list(self.spans):
            self._close(tp)

    def full(self, progress: PartitionProgress) -> bool:
        """What is in hand is rows of one span; its records without their values are small."""
        return False


def _in_a_name(text: str) -> str:
    """What may be part of a file's name; Kafka's topic ids are base64."""
    return text.replace("/", "_").replace("+", "-")
