"""Reading a stretch of the log: the one way to do it, and safe against Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from consumers.log.protocols import Reader, Record

POLL_S = 0.2


def to_the_end(reader: Reader) -> Iterator[Record]:
    """Everything that was there when the reader was made, and perhaps a little more."""
    while not reader.caught_up():
        with uninterrupted():
            records = reader.poll(POLL_S)
        yield from records


def from_now_on(reader: Reader) -> Iterator[Record]:
    """Every record from where the reader stands, for ever."""
    while True:
        with uninterrupted():
            records = reader.poll(POLL_S)
        yield from records


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until a poll has come back.

    Raised inside one of librdkafka's callbacks, it would come out as a SystemError.
    """
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
