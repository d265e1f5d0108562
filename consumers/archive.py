"""The archive group: what was written of trajectories and scores, as Parquet, exactly once.

The law: a partition is cut into spans at fixed offsets, [0, n), [n, 2n), ...; each is one file for
every table and day that it holds rows of, named by the topic's incarnation, partition and span. The
rows are a function of the records, the day is the log's own time, no clock has a say. Files appear
by renaming when their span is full, and only then are its records finished: the committed offset
stands between spans. A kill before the commit brings the span back; it is written again under the
same names, and a file that is there already is left as it is.

A span that is not full is in nobody's file: `rollcall export` covers the tail.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from consumers.log.protocols import Held, Log, Record, TopicPartition
from consumers.loop.partition_progress import PartitionProgress
from consumers.loop.role import WorkRole
from consumers.tables.parquet import ParquetWriters, sweep
from schemas.messages import ScoredTrajectory, Trajectory
from schemas.topics import Topics

SPAN = 1000
"""Offsets of one partition in a file."""
LOT_BYTES = 4 << 20
"""Held in memory of each partition at most."""

log = structlog.get_logger()


@dataclass
class Span:
    """One stretch of a partition that is being written."""

    end: int
    writers: ParquetWriters
    records: list[Record] = field(default_factory=list)


class Archive(WorkRole):
    """Writes every partition it holds, span by span."""

    def __init__(
        self, name: str, log_: Log, topics: Topics, directory: Path, *, span: int = SPAN
    ) -> None:
        self.name = name
        self.log = log_
        self.topics = [topics.trajectories, topics.scored]
        self.trajectories = topics.trajectories
        self.directory = directory
        self.span = span
        self.spans: dict[TopicPartition, Span] = {}
        self.ids: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.mark = f"{_in_a_name(name)}.{os.getpid()}"
        sweep(directory, _in_a_name(name))

    def expects(self, topic: str) -> type:
        return Trajectory if topic == self.trajectories else ScoredTrajectory

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        self.ids[held.topic] = self.log.topic_id(held.topic)
        return super().assigned(held, progress)

    def dropped(self, progress: PartitionProgress) -> None:
        span = self.spans.pop((progress.topic, progress.number), None)
        if span is not None:
            span.writers.abandon()

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, message in batch:
            span = self._span_of(record)
            topic_id = self.ids[record.topic]
            if record.topic == self.trajectories:
                span.writers.trajectory(record, topic_id, message)
            else:
                span.writers.scored(record, topic_id, message)
            span.records.append(record)
            record.value = None  # the rows are kept instead

    def _span_of(self, record: Record) -> Span:
        """The span of a record, after the one before it was closed."""
        tp = record.topic, record.partition
        open_span = self.spans.get(tp)
        if open_span is not None and record.offset < open_span.end:
            return open_span
        if open_span is not None:
            self._close(tp)
        begin = record.offset // self.span * self.span
        end = begin + self.span
        name = f"{record.topic}-{_in_a_name(self.ids[record.topic])}-{record.partition}"
        writers = ParquetWriters(
            self.directory, f"{name}-{begin}-{end}.parquet", self.mark, LOT_BYTES
        )
        return self.spans.setdefault(tp, Span(end, writers))

    def at_end(self, progress: PartitionProgress) -> None:
        """Behind the last record of a span there may be holes, and nothing else."""
        tp = progress.topic, progress.number
        if tp in self.spans and progress.end >= self.spans[tp].end:
            self._close(tp)

    def _close(self, tp: TopicPartition) -> None:
        """1. the files are whole and have their names  2. the records are finished."""
        span = self.spans.pop(tp)
        span.writers.finish()
        for record in span.records:
            record.closed = True
        self.counts["spans"] += 1
        self.counts.update(span.writers.rows)
        log.info("span_archived", topic=tp[0], partition=tp[1], offset=span.end)

    def full(self, progress: PartitionProgress) -> bool:
        """What is in hand is rows of one span; its records without their values are small."""
        return False


def _in_a_name(text: str) -> str:
    """What may be part of a file's name; Kafka's topic ids are base64."""
    return text.replace("/", "_").replace("+", "-")
