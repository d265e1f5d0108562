"""Header names may be any bytes; a client returns them or reports that it cannot."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from rollcall.consumers.log import kafka_log
from rollcall.consumers.log.kafka_log import KafkaReader, TopicWatch
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.dead_letter_records import parse_dead_letter_record
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.producers.admin import Admin
from rollcall.schemas.errors import BadMagic
from rollcall.schemas.headers import UNREADABLE
from rollcall.schemas.topics import Topics
from tests.support.raw_headers import produce_raw
from tests.support.rig import Rig

RAW = [
    [(b"ok", b"1"), (b"h\xff\xfe", b"v"), (b"last", b"2")],
    [(b"\xff", b"")],
    [(b"dlq_skip", b"1"), (b"\xed\xa0\x80", b"a lone surrogate")],
    [("é".encode(), b"\xff")],
    [(b"", b"")],
]
TOLD = [list(UNREADABLE)] * 3 + [[("é", b"\xff")], [("", b"")]]


@pytest.fixture
def servers() -> Iterator[str]:
    """A broker inside librdkafka."""
    mock = Producer({"test.mock.num.brokers": 1, "log_level": 0, "bootstrap.servers": "mock"})
    yield ",".join(f"{b.host}:{b.port}" for b in mock.list_topics(timeout=10).brokers.values())
    mock.flush(1)


def read_twice(records: list[Record]) -> list[object]:
    """The headers of each record, read more than once: a client may crash at the second time."""
    return [[record.headers for _ in range(3)][-1] for record in records]


def test_non_utf8_header_names_are_reported_by_kafkas_client(servers: str) -> None:
    for headers in RAW:
        produce_raw(servers, "t", headers)
    settings = {"bootstrap.servers": servers}
    watch = TopicWatch(Admin(settings), "")
    reader = KafkaReader(settings, watch, {("t", 0): (0, len(RAW))}, {})
    records: list[Record] = []
    while not reader.caught_up():
        records += reader.poll(10)

    assert read_twice(records) == TOLD
    assert [record.value for record in records] == [b"v"] * len(RAW)
    reader.close()


def test_non_utf8_header_names_are_reported_from_specialised_bytecode(servers: str) -> None:
    for headers in [RAW[3]] * 40 + RAW:
        produce_raw(servers, "t", headers)
    settings = {"bootstrap.servers": servers}
    watch = TopicWatch(Admin(settings), "")
    reader = KafkaReader(settings, watch, {("t", 0): (0, 40 + len(RAW))}, {})
    records: list[Record] = []
    while not reader.caught_up():
        records += reader.poll(10)

    assert read_twice(records) == [TOLD[3]] * 40 + TOLD
    reader.close()


def test_the_memory_log_reports_non_utf8_header_names_alike() -> None:
    log = MemoryLog()
    log.create("t", 1)
    for headers in RAW:
        log.append("t", b"k", b"v", 0, headers)

    assert read_twice(log.all("t")) == TOLD


class Broken:
    """A message of a client that raises when it is asked for its headers, and may be asked once."""

    def __init__(self, error: Exception) -> None:
        self.failure, self.asked = error, 0

    def headers(self) -> None:
        self.asked += 1
        raise self.failure

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"junk"

    def topic(self) -> str:
        return "t.rollout.requests"

    def partition(self) -> int:
        return 0

    def leader_epoch(self) -> int:
        return 0


@pytest.mark.parametrize(
    "error",
    [SystemError("exception set"), UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), ValueError("no")],
    ids=lambda error: type(error).__name__,
)
def test_a_record_whose_headers_raise_is_buried_and_read_once(error: Exception, rig: Rig) -> None:
    message: Any = Broken(error)
    record = kafka_log._record(message, (rig.topics.requests, 0))
    letters = DeadLetters(rig.pen, rig.topics, "t.agents", lambda: 0.0, rig.log)

    letters.bury(record, BadMagic(b"junk"))
    letters.bury(record, BadMagic(b"junk"))

    assert message.asked == 1
    first, _ = rig.log.all(rig.topics.dead_letters)
    assert UNREADABLE[0] in (first.headers or [])
    assert (first.key, first.value) == (b"k", b"junk")


@pytest.mark.broker
def test_broker_records_with_non_utf8_header_names_are_buried(kafka_log: Any) -> None:
    servers = kafka_log._settings["bootstrap.servers"]
    topics = Topics("raw.")
    kafka_log.create(topics.requests, 1)
    kafka_log.create(topics.dead_letters, 1)
    for headers in RAW:
        produce_raw(servers, topics.requests, headers)
    publisher = kafka_log.publisher()
    letters = DeadLetters(publisher, topics, "raw.agents", lambda: 0.0, kafka_log)

    for record in read_all(kafka_log, [topics.requests]):
        letters.bury(record, BadMagic(b"v"))
    assert publisher.flush(20) == 0

    said = [
        parse_dead_letter_record(record) for record in read_all(kafka_log, [topics.dead_letters])
    ]
    assert [getattr(each, "origin", None) for each in said] == [
        (topics.requests, 0, n) for n in range(len(RAW))
    ]
