"""Reading a stretch of the log without a group: the one way to do it, and safe against Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain

from consumers.log.protocols import Log, Reader, Record, TopicPartition

POLL_S = 0.2
MOST = 500
"""Records of one poll."""
MANY = 5_000
"""Records of one poll where only a few of them are looked into."""


def read_all(
    log: Log,
    topics: Sequence[str],
    starts: Mapping[TopicPartition, int] | None = None,
    most: int = MOST,
) -> Iterator[Record]:
    """Everything from `starts`, elsewhere from the log start, to the ends as they are now.

    It may be a little more. Raises TopicsDiffer for a topic that is not there, Unavailable.
    """
    with closing(log.reader(topics, starts)) as reader:
        yield from to_the_end(reader, most)


def spans(
    log: Log, stretches: Iterable[tuple[TopicPartition, int, int]]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """From where to where each partition has to be read to meet them all: starts and ends.

    A stretch is a partition, its first offset and its last; what retention has taken is left out.
    Raises Unavailable.
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
    """Read one partition from `start`, or from where it begins now, to where it ends now."""
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
    """Polls of what lies between two offsets of each partition, in order within each."""
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
    """Everything that was there when the reader was made, and perhaps a little more."""
    return chain.from_iterable(polls(reader, lambda: most))


def from_now_on(reader: Reader) -> Iterator[Record]:
    """Every record from where the reader stands, for ever."""
    while True:
        with uninterrupted():
            records = reader.poll(POLL_S)
        yield from records


def polls(reader: Reader, most: Callable[[], int] = lambda: MOST) -> Iterator[list[Record]]:
    """The same as `to_the_end`, poll by poll, each of at most so many; some are empty."""
    while not reader.caught_up():
        with uninterrupted():
            records = reader.poll(POLL_S, most())
        yield records


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until a poll has come back, then deliver it to whoever handled it before.

    Raised inside one of librdkafka's callbacks, it would come out as a SystemError. No signal is
    handled outside the main thread, so there is nothing to hold back there.
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
