"""Looking at the log: records as lines of JSON, and all that lies under one rollout's key."""

from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import orjson

from compose.terminal import quiet_pipes
from consumers.log.protocols import Log, Reader, Record
from consumers.log.reading import from_now_on, to_the_end
from consumers.loop.dead_letters import passed_in_journal
from schemas.as_json import plain, text_of
from schemas.errors import Refused, WireError
from schemas.messages import ScoredTrajectory
from schemas.names import unknown

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from consumers.history.rollout_story import Story

BURIED_FROM = "dlq_topic"

Show = Callable[[Record], dict[str, Any]]


def tail(
    cluster: "Cluster", topic: str, *, decode: bool, limit: int, follow: bool, last: int
) -> None:
    """Print a topic's records, one JSON object a line; without `follow` up to its end of now.

    In the order of each partition; with `last`, which is over all partitions, by time.
    """
    name = topic_of(cluster, topic)
    show = decoder(cluster, name) if decode else _hex
    with quiet_pipes(), closing(_reader(cluster, name, last)) as reader:
        records = to_the_end(reader)
        if last:
            records = iter(sorted(records, key=_by_time)[-last:])
        if follow:
            records = chain(records, from_now_on(reader))
        for record in islice(records, limit or None):
            print(orjson.dumps(line_of(record) | show(record)).decode(), flush=follow)


def topic_of(cluster: "Cluster", given: str) -> str:
    """The full name of a topic that is there; raises Refused naming the nearest."""
    there, prefix = cluster.admin.partitions(), cluster.settings.prefix
    for name in (f"{prefix}{given}", given):
        if name in there:
            return name
    ours = [name.removeprefix(prefix) for name in there if name.startswith(prefix)]
    if not ours:
        msg = f"no topic {given!r}, nor any other under {prefix!r}; run `rollcall topics apply`"
        raise Refused(msg)
    raise unknown("topic", given.removeprefix(prefix), ours)


def _reader(cluster: "Cluster", topic: str, last: int) -> Reader:
    """From the log start, or from `last` before every partition's end."""
    log: Log = cluster.log
    if not last:
        return log.reader([topic])
    bounds = log.bounds(topic)
    starts = {(topic, number): max(low, end - last) for number, (low, end) in bounds.items()}
    return log.reader([topic], starts)


def _by_time(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


def line_of(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": iso(record.timestamp_ms),
        "key": text_of(record.key),
        "headers": _headers(record),
    }


def iso(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds")


def _headers(record: Record) -> dict[str, Any]:
    """By name; a name that comes more than once has all its values."""
    found: dict[str, list[str | None]] = {}
    for name, value in record.headers or []:
        found.setdefault(name, []).append(text_of(value))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def _hex(record: Record) -> dict[str, Any]:
    return {"value": None if record.value is None else record.value.hex()}


def decoder(cluster: "Cluster", topic: str) -> Show:
    """Values as messages; dead letters as those of the topic that they were meant for."""
    expected = cluster.topics.record_of(topic)

    def show(record: Record) -> dict[str, Any]:
        wanted = expected or _buried(cluster, record)
        if wanted is None:
            return _hex(record)
        try:
            return {"value": plain(cluster.codec.decode(record.value, wanted))}
        except WireError as error:
            return _hex(record) | {"error": f"{type(error).__name__}: {error}"}

    return show


def _buried(cluster: "Cluster", record: Record) -> type | None:
    sources = [value for name, value in record.headers or [] if name == BURIED_FROM and value]
    try:
        return cluster.topics.record_of(text_of(sources[-1]) or "") if sources else None
    except Refused:
        return None


def journal_of(cluster: "Cluster", rollout_id: str) -> list[Record]:
    """The records under a rollout's key, by partition in log order; they may lie in any."""
    key = rollout_id.encode(errors="surrogateescape")
    found, others = _under_key(cluster, cluster.topics.events, key)
    if found:
        return passed_in_journal(cluster.log, cluster.topics).counted(found)
    if _under_key(cluster, cluster.topics.requests, key)[0]:
        msg = f"rollout {rollout_id!r} is requested, but not started; is an agents worker running?"
        raise Refused(msg)
    near = next((text_of(other) for other in sorted(others) if other.startswith(key)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    msg = f"no rollout {rollout_id!r} among the {len(others):,} in {cluster.topics.events}{hint}"
    raise Refused(msg)


def _under_key(cluster: "Cluster", topic: str, key: bytes) -> tuple[list[Record], set[bytes]]:
    """A topic's records of one key, and the keys of all others."""
    found, others = [], set()
    with closing(cluster.log.reader([topic])) as reader:
        for record in to_the_end(reader):
            if record.key == key:
                found.append(record)
            elif record.key is not None:
                others.add(record.key)
    return found, others


def scored_of(cluster: "Cluster", story: "Story") -> list[ScoredTrajectory]:
    """What scorers made of a rollout that has ended, the first of each scoring id."""
    group = story.request.group_id if story.request else ""
    key = (group or story.rollout_id).encode()
    found: dict[str, ScoredTrajectory] = {}
    for record in _under_key(cluster, cluster.topics.scored, key)[0]:
        with suppress(WireError):
            scored = cluster.codec.decode(record.value, ScoredTrajectory)
            if story.is_of(scored.trajectory):
                found.setdefault(scored.scoring_id, scored)
    return list(found.values())
