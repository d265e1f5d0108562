import signal
import threading
from collections.abc import Sequence

import pytest

from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.reading import polls, read_all, read_between, spans, uninterrupted
from rollcall.schemas.topics import Topics, wanted

TOPIC = Topics("t.").events


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of ten records each, numbered in the order of writing."""
    log = MemoryLog(wanted("t.", [], partitions=2))
    for number in range(20):
        log.append(TOPIC, None, b"%d" % number, number % 2)
    return log


def places(records: Sequence[object]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]  # type: ignore[attr-defined]


def test_read_all_returns_everything_from_the_start_offsets(log: MemoryLog) -> None:
    read = list(read_all(log, [TOPIC], {(TOPIC, 0): 8, (TOPIC, 1): 10}))

    assert places(read) == [(0, 8), (0, 9)]


def test_the_end_offset_is_exclusive(log: MemoryLog) -> None:
    starts, ends = {(TOPIC, 0): 3, (TOPIC, 1): 7}, {(TOPIC, 0): 5, (TOPIC, 1): 7}

    assert places([r for batch in read_between(log, starts, ends) for r in batch]) == [
        (0, 3),
        (0, 4),
    ]


def test_spans_are_clipped_to_the_retained_offsets(log: MemoryLog) -> None:
    log.delete_before(TOPIC, 0, 4)
    zero, one, two = ((TOPIC, number) for number in range(3))

    found = spans(log, [(zero, 0, 3), (zero, 2, 6), (zero, 8, 8), (one, 5, 5), (two, 0, 9)])

    assert found == ({zero: 4, one: 5}, {zero: 9, one: 6})
    assert places([r for batch in read_between(log, *found) for r in batch if r.partition]) == [
        (1, 5)
    ]


def test_a_poll_never_exceeds_the_requested_size(log: MemoryLog) -> None:
    reader = log.reader([TOPIC])

    assert {len(records) for records in polls(reader, lambda: 3)} <= {0, 1, 2, 3}


def test_ctrl_c_is_deferred_until_the_poll_returns() -> None:
    done = []

    with pytest.raises(KeyboardInterrupt), uninterrupted():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append("poll")

    assert done == ["poll"]


def test_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)

        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_reading_works_off_the_main_thread(log: MemoryLog) -> None:
    read: list[object] = []
    thread = threading.Thread(target=lambda: read.extend(read_all(log, [TOPIC])))

    thread.start()
    thread.join()

    assert len(read) == 20
