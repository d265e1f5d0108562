"""`rollcall topics stats`: what lies on the topics, how fast it comes, and who is how far behind.

No group is joined. A broker does not tell its clients how many bytes a partition holds, so they are
estimated from the last records of each: keys, values and headers as they are before compression.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from consumers.history.times import iso
from consumers.log.protocols import Log, Record, TopicPartition
from consumers.log.reading import to_the_end
from schemas.errors import Refused

if TYPE_CHECKING:
    from compose.cluster import Cluster

SAMPLE = 50
"""Of the last records of a partition."""
RECENT_S = (60, 3600)


@dataclass(slots=True)
class Topic:
    """What one topic holds now."""

    name: str
    partitions: int
    records: int = 0
    """Offsets between start and end: holes, and what compaction removed, count too."""
    estimated_bytes: int = 0
    per_s: dict[str, float] = field(default_factory=dict)
    """Records a second over the last so many seconds."""
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass(slots=True)
class Lag:
    """How far one group is behind on one topic, by partition that it has committed."""

    group: str
    topic: str
    partitions: dict[int, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())


@dataclass(slots=True)
class Stats:
    """The state of everything under one prefix."""

    topics: list[Topic]
    lags: list[Lag]

    def plain(self) -> dict[str, Any]:
        lags = [
            {"group": lag.group, "topic": lag.topic, "lag": lag.total}
            | {"partitions": {str(number): behind for number, behind in lag.partitions.items()}}
            for lag in self.lags
        ]
        return {
            "partitions": sum(topic.partitions for topic in self.topics),
            "topics": [asdict(topic) for topic in self.topics],
            "lags": lags,
        }


def measure(cluster: "Cluster", *, now_s: float | None = None) -> Stats:
    """Ask the log; raises Refused where there is none of our topics."""
    log, prefix = cluster.log, cluster.settings.prefix
    names = [name for name in log.topic_names() if name.startswith(prefix)]
    if not names:
        msg = f"no topic begins with {prefix!r}; run `rollcall topics apply`"
        raise Refused(msg)
    # Commits before ends: what is committed meanwhile must not look like less than no lag.
    committed = {
        (group, name): log.committed(group, name)
        for group in log.group_names()
        if group.startswith(prefix)
        for name in names
    }
    bounds = {name: log.bounds(name) for name in names}
    now_ms = int((time.time() if now_s is None else now_s) * 1000)
    topics = [_topic(log, name, bounds[name], now_ms) for name in names]
    lags = [
        Lag(group, name, {n: max(0, bounds[name][n][1] - at) for n, at in sorted(done.items())})
        for (group, name), done in committed.items()
        if done
    ]
    return Stats(topics, lags)


def _topic(log: Log, name: str, bounds: Mapping[int, tuple[int, int]], now_ms: int) -> Topic:
    found = Topic(name, len(bounds), sum(end - low for low, end in bounds.values()))
    filled = {(name, n): each for n, each in bounds.items() if each[0] < each[1]}
    if not filled:
        return found
    firsts = _read(log, name, {tp: (low, low + 1) for tp, (low, _) in filled.items()}, bounds)
    lasts = _read(log, name, {tp: (max(a, b - SAMPLE), b) for tp, (a, b) in filled.items()}, bounds)
    for tp, (low, end) in filled.items():
        sizes = [_size(record) for record in lasts.get(tp, [])]
        found.estimated_bytes += round(sum(sizes) / max(1, len(sizes)) * (end - low))
    found.oldest_ms = min((r.timestamp_ms for own in firsts.values() for r in own), default=None)
    found.newest_ms = max((r.timestamp_ms for own in lasts.values() for r in own), default=None)
    for seconds in RECENT_S:
        since = log.offsets_for_times([name], now_ms - seconds * 1000)
        count = sum(max(0, end - max(low, since[tp])) for tp, (low, end) in filled.items())
        found.per_s[str(seconds)] = round(count / seconds, 3)
    return found


def _read(
    log: Log,
    name: str,
    spans: Mapping[TopicPartition, tuple[int, int]],
    bounds: Mapping[int, tuple[int, int]],
) -> dict[TopicPartition, list[Record]]:
    """The records of a few short stretches; of a stretch of holes, the first behind it."""
    found: dict[TopicPartition, list[Record]] = {}
    left = set(spans)
    starts = {(name, n): end for n, (_, end) in bounds.items()}
    starts |= {tp: first for tp, (first, _) in spans.items()}
    with closing(log.reader([name], starts)) as reader:
        for record in to_the_end(reader, SAMPLE):
            tp = record.topic, record.partition
            if tp in left:
                found.setdefault(tp, []).append(record)
                if record.offset + 1 >= spans[tp][1]:
                    left.discard(tp)
            if not left:
                break
    return found


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers or [])
    return len(record.key or b"") + len(record.value or b"") + headers


def show(stats: Stats, terminal: Console) -> None:
    """Topics, then groups."""
    shown = Table(
        "topic", "partitions", "records", "MB", "/s, 1 min", "/s, 1 h", "oldest", "newest"
    )
    for column in range(1, 6):
        shown.columns[column].justify = "right"
    for topic in stats.topics:
        rates = [f"{topic.per_s[str(seconds)]:,.1f}" if topic.per_s else "" for seconds in RECENT_S]
        times = [(iso(at) or "")[:19] if at else "" for at in (topic.oldest_ms, topic.newest_ms)]
        size = f"~{topic.estimated_bytes / 1e6:,.2f}" if topic.records else ""
        count = f"{topic.records:,}"
        shown.add_row(topic.name, str(topic.partitions), count, size, *rates, *times)
    terminal.print(shown)
    behind = Table("group", "topic", "lag", "by partition")
    behind.columns[2].justify = "right"
    for lag in stats.lags:
        each = "  ".join(f"{n}:{count:,}" for n, count in lag.partitions.items() if count)
        behind.add_row(lag.group, lag.topic, f"{lag.total:,}", each)
    terminal.print(behind if stats.lags else "no group has committed anything yet")
    partitions = sum(topic.partitions for topic in stats.topics)
    terminal.print(
        f"{len(stats.topics)} topics, {partitions:,} partitions; `rollcall runs retire` removes "
        "those of a run that is over"
    )
    terminal.print("~ estimated from the last records of each partition, before compression")
