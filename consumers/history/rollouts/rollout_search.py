"""Finds the records of one rollout without reading whole topics.

Topics hold the records of a million rollouts, and a user asks for one. So the search is bounded:

1. The requests under the rollout's key: in the partition that the producers' partitioner chooses,
and in all others only if that one has none. 2. Its journal is in the partition of the same number,
behind the request's time. It is read until each of these requests has its end, and a little further
for late records. 3. Its scores are in the partition that the partitioner chooses for its group,
behind its end. They are read until every requested scoring has scored it, and a little further.

The whole topics are read if the bounded search finds nothing: a producer may set any key and any
partition, and retention takes requests before journals.
"""

from collections.abc import Callable, Iterable, Iterator

from rollcall.consumers.history.reading.counting import JOINED, STARTS, Counting
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import SKEW_MS
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import MANY, read_all, read_partition
from rollcall.schemas.as_json import text_of
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import Event

FURTHER = 20_000
"""Records of a partition that are read beyond the last one needed."""


def journal_under(history: History, rollout_id: str) -> list[Record]:
    """Return the records under a rollout's key, by partition in log order.

    Raises Refused if there are none, and Unavailable.
    """
    key, topics = key_of(rollout_id), history.topics
    likely = history.log.partition_of(topics.requests, key)
    read = read_partition(history.log, topics.requests, likely)
    requests = [record for record in read if record.key == key]
    if not requests:
        requests, _ = _key_anywhere(history, topics.requests, key)
    own: list[Record] = []
    for partition in sorted({request.partition for request in requests}):
        asked = [request for request in requests if request.partition == partition]
        own += _journal(history, key, partition, asked)
    if own:
        return own
    own, others = _key_anywhere(history, topics.events, key)
    if not own:
        raise _not_found(rollout_id, requested=bool(requests), others=others, topic=topics.events)
    return own


def has_key(history: History, topic: str, key: str) -> bool:
    """Return True if the partition that the partitioner chooses for a key has a record under it."""
    raw = key_of(key)
    records = read_partition(history.log, topic, history.log.partition_of(topic, raw))
    return any(record.key == raw for record in records)


def _not_found(rollout_id: str, *, requested: bool, others: set[bytes], topic: str) -> Refused:
    if requested:
        msg = f"rollout {rollout_id!r} is requested, but not started; is an agents worker running?"
        return Refused(msg)
    key = key_of(rollout_id)
    near = min((other for other in others if other.startswith(key)), default=None)
    hint = f"; did you mean {text_of(near)!r}?" if near else ""
    return Refused(f"no rollout {rollout_id!r} among the {len(others):,} in {topic}{hint}")


def _key_anywhere(history: History, topic: str, key: bytes) -> tuple[list[Record], set[bytes]]:
    """Return a topic's records under a key, and all other keys."""
    own, others = list[Record](), set[bytes]()
    for record in read_all(history.log, [topic], most=MANY):
        if record.key == key:
            own.append(record)
        elif record.key is not None:
            others.add(record.key)
    return own, others


def _journal(
    history: History, key: bytes, partition: int, requests: list[Record]
) -> Iterator[Record]:
    """Read a journal partition from the first request's time until each of them has ended."""
    ends = _Ends(history.codec, len(requests))
    records = _since(history, history.topics.events, partition, requests[0].timestamp_ms)
    for record in _under_key(records, key, ends.reached):
        ends.take(record)
        yield record


def read_scored(
    history: History, key: str, at_ms: int, take: Callable[[Record], None], done: Callable[[], bool]
) -> None:
    """Pass on the scored records under a group's or rollout's key, written at or after a time.

    Reading ends a little behind the record with which it is `done`. Raises Unavailable.
    """
    topic, raw = history.topics.scored, key_of(key)
    likely = history.log.partition_of(topic, raw)
    others = (number for number in range(history.log.partitions(topic)) if number != likely)
    for partition in (likely, *others):
        for record in _under_key(_since(history, topic, partition, at_ms), raw, done):
            take(record)
        if done():
            return


def _since(history: History, topic: str, partition: int, at_ms: int) -> Iterator[Record]:
    starts = history.log.offsets_for_times([topic], max(0, at_ms - SKEW_MS))
    return read_partition(history.log, topic, partition, starts[topic, partition])


def _under_key(records: Iterable[Record], key: bytes, done: Callable[[], bool]) -> Iterator[Record]:
    """Yield the records under a key, up to `FURTHER` records behind the one with which it is done.

    `done` is called after each was passed on.
    """
    left: int | None = None
    for record in records:
        if left is not None:
            left -= 1
            if left < 0:
                return
        if record.key == key:
            yield record
            if left is None and done():
                left = FURTHER


class _Ends:
    """Counts the ends of the rollouts of one id."""

    def __init__(self, codec: Codec, wanted: int) -> None:
        self.codec = codec
        self.counting = Counting()
        self.left = wanted

    def reached(self) -> bool:
        """Return True if as many rollouts have ended as were requested."""
        return self.left <= 0

    def take(self, record: Record) -> None:
        """Take one entry of the journal, in log order."""
        try:
            event = self.codec.decode(record.value, Event)
        except WireError:
            return
        body, ignored = event.body, self.counting.take(event)
        if isinstance(body, STARTS):  # a request may also join the open rollout, or be refused
            self.left -= ignored == JOINED or (not ignored and not self.counting.open)
        else:
            self.left -= not ignored and not self.counting.open


def key_of(rollout_id: str) -> bytes:
    """Return the key of a rollout's records."""
    return rollout_id.encode(errors="surrogateescape")
