"""Statistics of topics: contents, rates, and lag of groups.

No group is joined. A broker does not tell clients the size of a partition in bytes, so it is
estimated from the last records of each: keys, values and headers before compression.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.protocols import Log, OpenTransaction, Record, TopicPartition
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.errors import Refused

SAMPLE = 50
"""The number of last records of a partition that are sampled."""
RECENT_S = (60, 3600)


@dataclass(slots=True)
class TopicState:
    """The present contents of one topic."""

    name: str
    partitions: int
    records: int = 0
    """Offsets between start and end, including holes and compacted records."""
    estimated_bytes: int = 0
    per_s: dict[str, float] = field(default_factory=dict)
    """Records a second over each of the last RECENT_S seconds."""
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass(slots=True)
class GroupLag:
    """The lag of one group on one topic, by partition that it has committed."""

    group: str
    topic: str
    partitions: dict[int, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())


@dataclass(slots=True)
class LogState:
    """The state of all topics and groups under one prefix."""

    topics: list[TopicState]
    lags: list[GroupLag]
    held_back: list[OpenTransaction] = field(default_factory=list)
    """Places where open transactions hold back all groups."""

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
            "held_back": [asdict(opened) for opened in self.held_back],
        }


def measure(history: History, *, now_s: float | None = None) -> LogState:
    """Measure the topics; raises Refused if there are none with the prefix."""
    log, prefix = history.log, history.topics.prefix
    names = [name for name in log.topic_names() if name.startswith(prefix)]
    if not names:
        msg = f"no topic begins with {prefix!r}; run `rollcall topics apply`"
        raise Refused(msg)
    # Commits before ends: otherwise later commits could lead to a negative lag.
    committed = {
        (group, name): log.committed(group, name)
        for group in log.group_names()
        if group.startswith(prefix)
        for name in names
    }
    bounds = {name: log.bounds(name) for name in names}
    held_back = log.open_transactions(names)
    waiting = {(opened.topic, opened.partition): opened.end for opened in held_back}
    now_ms = int((time.time() if now_s is None else now_s) * 1000)
    topics = [_topic(log, name, bounds[name], now_ms) for name in names]
    lags = [
        GroupLag(
            group,
            name,
            {
                n: max(0, waiting.get((name, n), bounds[name][n][1]) - at)
                for n, at in sorted(done.items())
            },
        )
        for (group, name), done in committed.items()
        if done
    ]
    return LogState(topics, lags, held_back)


def _topic(log: Log, name: str, bounds: Mapping[int, tuple[int, int]], now_ms: int) -> TopicState:
    state = TopicState(name, len(bounds), sum(end - low for low, end in bounds.values()))
    filled = {(name, n): each for n, each in bounds.items() if each[0] < each[1]}
    if not filled:
        return state
    firsts = _read(log, name, {tp: (low, low + 1) for tp, (low, _) in filled.items()}, bounds)
    lasts = _read(log, name, {tp: (max(a, b - SAMPLE), b) for tp, (a, b) in filled.items()}, bounds)
    for tp, (low, end) in filled.items():
        sizes = [_size(record) for record in lasts.get(tp, [])]
        state.estimated_bytes += round(sum(sizes) / max(1, len(sizes)) * (end - low))
    state.oldest_ms = min((r.timestamp_ms for own in firsts.values() for r in own), default=None)
    state.newest_ms = max((r.timestamp_ms for own in lasts.values() for r in own), default=None)
    for seconds in RECENT_S:
        since = log.offsets_for_times([name], now_ms - seconds * 1000)
        count = sum(max(0, end - max(low, since[tp])) for tp, (low, end) in filled.items())
        state.per_s[str(seconds)] = round(count / seconds, 3)
    return state


def _read(
    log: Log,
    name: str,
    spans: Mapping[TopicPartition, tuple[int, int]],
    bounds: Mapping[int, tuple[int, int]],
) -> dict[TopicPartition, list[Record]]:
    """Read the records of a few short ranges; for a range of holes, the first record behind it."""
    records: dict[TopicPartition, list[Record]] = {}
    left = set(spans)
    starts = {(name, n): end for n, (_, end) in bounds.items()}
    starts |= {tp: first for tp, (first, _) in spans.items()}
    for record in read_all(log, [name], starts, SAMPLE):
        tp = record.topic, record.partition
        if tp in left:
            records.setdefault(tp, []).append(record)
            if record.offset + 1 >= spans[tp][1]:
                left.discard(tp)
        if not left:
            break
    return records


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers or [])
    return len(record.key or b"") + len(record.value or b"") + headers
