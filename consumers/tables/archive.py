"""The archive group: writes trajectories and scores as Parquet, exactly once.

A partition is cut into spans: at fixed offsets, [0, n), [n, 2n), ..., between two days of the log's
own time, when a span was open for `HOLD_S`, and when the worker leaves. Each span is one file per
table, named by the topic's id, the partition and its first offset. Files are renamed to their final
names when their span ends, and only then are its records finished: so the committed offset is
always between spans. After a kill before the commit the span is read again; the existing file
shows where it ended, and is kept.
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

from rollcall.consumers.log.protocols import Held, Log, Record, TopicPartition
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import WorkRole
from rollcall.consumers.tables.parquet import ParquetWriters, day_of, last_offset, sweep
from rollcall.schemas.errors import Unavailable, Unfit
from rollcall.schemas.messages import ScoredTrajectory, Trajectory
from rollcall.schemas.topics import Topics

SPAN = 1000
"""Offsets of one partition in a file."""
HOLD_S = 3600.0
"""Time after which an incomplete span is closed, before retention can delete its records."""
LOT_BYTES = 4 << 20
"""Limit of the memory for rows of each partition."""

log = structlog.get_logger()


@dataclass
class Span:
    """A range of a partition that is being written."""

    begin: int
    end: int
    written: int
    """The end of the span by a file that exists already; 0 if there is none."""
    day: str
    since: float
    """Time by the worker's clock."""
    writers: ParquetWriters
    records: list[Record] = field(default_factory=list)


class ArchiveRole(WorkRole):
    """Writes its partitions, span by span."""

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
        """The end of the last span of each partition, or the start of reading."""
        self.ids: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.mark = f"{_in_a_name(name)}.{os.getpid()}"
        with self._told():
            sweep(directory, _in_a_name(name))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise Unavailable if the directory is missing or full, so that the worker retries later.

        Other errors, such as for a row that no table takes, are faults of a record.
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
        """Return the span of a record; close the one before it."""
        tp, day = (record.topic, record.partition), day_of(record.timestamp_ms)
        open_span = self.spans.get(tp)
        if open_span is not None and record.offset < open_span.end and day == open_span.day:
            return open_span
        if open_span is not None:
            self._close(tp)
        begin = record.offset // self.span * self.span
        end = begin + self.span
        # The rest of a span that was closed early begins at this record.
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
        """Return the end of an already written span that begins here; 0 if there is none."""
        table = "trajectories" if tp[0] == self.trajectories else "scores"
        found = self.directory.glob(f"{table}/day=*/{escape(self._prefix(tp, begin))}*.parquet")
        return max((last_offset(path) + 1 for path in found), default=0)

    def at_end(self, progress: PartitionProgress) -> None:
        """Close a span whose end is reached, perhaps with holes after its last record."""
        tp = progress.topic, progress.number
        if tp in self.spans and progress.end >= self.spans[tp].end:
            self._close(tp)

    def _close(self, tp: TopicPartition) -> None:
        """1. complete the files and rename them  2. finish the records."""
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
            self.spans[tp] = span  # it is abandoned with its partition
            raise
        self.cuts[tp] = last
        for record in span.records:
            record.closed = True
        self.counts["spans"] += 1
        self.counts.update(span.writers.rows)
        log.info("span_archived", topic=tp[0], partition=tp[1], offset=last)

    def tick(self) -> None:
        """Close spans that have been open for too long."""
        now = self.clock()
        for tp in [tp for tp, span in self.spans.items() if now - span.since >= HOLD_S]:
            self._close(tp)

    def leave(self, *, patient: bool) -> None:
        """Write the open spans, complete or not."""
        del patient
        for tp in list(self.spans):
            self._close(tp)

    def full(self, progress: PartitionProgress) -> bool:
        """Return False: only rows of one span are held, and records without values are small."""
        return False


def _in_a_name(text: str) -> str:
    """Replace characters that a file name cannot have; Kafka's topic ids are base64."""
    return text.replace("/", "_").replace("+", "-")
