"""Reads ranges of the log without a group; the only code that does, and safe against Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain

from rollcall.consumers.log.protocols import Log, Reader, Record, TopicPartition

POLL_S = 0.2
MOST = 500
"""The most records of one poll."""
MANY = 5_000
"""The most records of one poll if only a few of them are decoded."""


def read_all(
    log: Log,
    topics: Sequence[str],
    starts: Mapping[TopicPartition, int] | None = None,
    most: int = MOST,
) -> Iterator[Record]:
    """Yield all records from `starts`, elsewhere from the log start, to the present ends.

    There may be a few more. Raises TopicsDiffer for a missing topic, and Unavailable.
    """
    with closing(log.reader(topics, starts)) as reader:
        yield from to_the_end(reader, most)


def spans(
    log: Log, stretches: Iterable[tuple[TopicPartition, int, int]]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the starts and ends of the smallest ranges that cover all stretches, by partition.

    A stretch is a partition, its first offset and its last; records that retention took are left
    out. Raises Unavailable.
    """
    lows: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for tp, first, last in stretches:
        if tp not in lows:
            bounds = log.bounds(tp[0])
            lows |= {(tp[0], number): low for number, (low, _) in bounds.items()}
        if last >= lows.get(tp, last + 1):
            start = max(first, lows[tp])
            starts[tp] = min(start, starts.get(tp, start))
            ends[tp] = max(last + 1, ends.get(tp, 0))
    return starts, ends


def read_partition(log: Log, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
    """Read one partition from `start`, or from its present beginning, to its present end."""
    low, end = log.bounds(topic)[partition]
    tp = topic, partition
    polled = read_between(log, {tp: max(low, start)}, {tp: end}, lambda: MANY)
    return chain.from_iterable(polled)


def read_between(
    log: Log,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: Callable[[], int] = lambda: MOST,
) -> Iterator[list[Record]]:
    """Yield the records between two offsets of each partition by poll, in order within each."""
    left = {tp for tp, at in starts.items() if at < ends[tp]}
    if not left:
        return
    topics = sorted({topic for topic, _ in left})
    at_end = {(topic, n): end for topic in topics for n, (_, end) in log.bounds(topic).items()}
    with closing(log.reader(topics, at_end | dict(starts))) as reader:
        for polled in polls(reader, most):
            records = []
            for record in polled:
                tp = record.topic, record.partition
                if record.offset < ends.get(tp, 0):
                    records.append(record)
                if record.offset + 1 >= ends.get(tp, 0):
                    left.discard(tp)
            if records:
                yield records
            if not left:
                return


def to_the_end(reader: Reader, most: int = MOST) -> Iterator[Record]:
    """Yield all records that existed when the reader was made, and perhaps a few more."""
    return chain.from_iterable(polls(reader, lambda: most))


def from_now_on(reader: Reader) -> Iterator[Record]:
    """Yield every record from the reader's position on, without end."""
    while True:
        with uninterrupted():
            records = reader.poll(POLL_S)
        yield from records


def polls(reader: Reader, most: Callable[[], int] = lambda: MOST) -> Iterator[list[Record]]:
    """Yield like `to_the_end`, poll by poll, each of at most `most()` records; some are empty."""
    while not reader.caught_up():
        with uninterrupted():
            records = reader.poll(POLL_S, most())
        yield records


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C until a poll has returned, then deliver it to the previous handler.

    Raised inside one of librdkafka's callbacks, it would come out as a SystemError. Signals are
    handled in the main thread only, so elsewhere there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)
