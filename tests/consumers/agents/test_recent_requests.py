"""The first request of a rollout, within a window of a partition's offsets."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.lookback import bounds_of
from rollcall.consumers.agents.recent_requests import FirstRequest, RecentRequests
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Record

T = "requests"


def record(key: bytes, offset: int) -> Record:
    return Record(T, 0, offset, key, None, 1000 + offset)


def asked(keys: list[bytes], window: int) -> RecentRequests:
    log = MemoryLog()
    log.create(T, 1)
    return noted(RecentRequests(log, T, 0, 0, window=window), list(enumerate(keys)))


def noted(asked: RecentRequests, requests: list[tuple[int, bytes]]) -> RecentRequests:
    for offset, key in requests:
        asked.note(key, record(key, offset))
    return asked


def test_the_first_request_is_named_for_every_repetition() -> None:
    known = asked([b"a", b"b", b"a", b"a"], window=10)

    assert known.first(b"a") == FirstRequest(1000, 0, 0)
    assert known.first(b"b") == FirstRequest(1001, 0, 1)
    assert known.first(b"c") is None


def test_requests_outside_the_window_are_forgotten() -> None:
    known = asked([b"a", b"b", b"c"], window=2)

    assert known.first(b"a") is None
    assert known.first(b"b") == FirstRequest(1001, 0, 1)
    assert known.first(b"b", 4) is None


def test_a_repetition_restarts_the_window() -> None:
    known = asked([b"a", b"b", b"a", b"b"], window=2)

    assert known.first(b"a", 4) == FirstRequest(1000, 0, 0)


@given(
    window=st.integers(1, 12),
    requests=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"]))),
)
def test_an_id_is_known_exactly_within_the_window(
    window: int, requests: list[tuple[int, bytes]]
) -> None:
    known, last, offset = asked([], window), dict[bytes, int](), -1

    for gap, key in requests:
        offset += gap
        found = known.first(key, offset)
        assert (found is not None) == (key in last and last[key] >= offset - window)
        known.note(key, record(key, offset))
        last[key] = offset


def test_only_the_keys_within_the_window_are_read_back() -> None:
    log = MemoryLog()
    log.create(T, 2)
    for n in range(8):
        log.append(T, f"r{n}".encode(), b"a value that nobody decodes", 0)
    log.append(T, None, b"no key", 0)
    log.append(T, b"elsewhere", b"", 1)
    for n in range(3):
        log.append(T, f"new{n}".encode(), b"", 0)
    known = RecentRequests(log, T, 0, 9, window=4)

    while not known.known:
        known.read()

    names = [b"r4", b"r5", b"r7", b"elsewhere", b"new0"]
    found = [known.first(name, 9) for name in names]
    assert [each.offset if each else None for each in found] == [None, 5, 7, None, None]


def test_a_partition_without_history_is_known_at_once() -> None:
    assert asked([], window=4).known


class Grown(MemoryLog):
    """Knows the number of partitions at the time of the last topic listing."""

    def __init__(self) -> None:
        super().__init__()
        self.known = 0

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return {n: both for n, both in super().bounds(topic).items() if n < self.known}

    def topic_names(self) -> list[str]:
        self.known = self.partitions(T)
        return super().topic_names()


def test_an_added_partition_is_read_back_too() -> None:
    log = Grown()
    log.create(T, 1)
    log.topic_names()
    log.create(T, 2)
    log.append(T, b"a", None, 1)
    known = RecentRequests(log, T, 1, 1)

    while not known.known:
        known.read()

    assert known.first(b"a") == FirstRequest(log.all(T)[0].timestamp_ms, 1, 0)
    assert bounds_of(log, T, 7)[7] == (0, 0)
