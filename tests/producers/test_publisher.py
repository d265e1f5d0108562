"""How a process reports an unavailable broker, and how long it waits for missing things."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from rollcall.producers.admin import Admin
from rollcall.producers.client_errors import ConsoleThrottle, quiet
from rollcall.producers.kafka_publisher import KafkaPublisher
from rollcall.producers.publisher import Outgoing
from rollcall.schemas.errors import DeliveryFailed, Unavailable, WorkFailed


class Cause:
    sent = acked = 0


def test_a_repeated_message_is_logged_once_per_interval() -> None:
    now = [100.0]
    throttle = ConsoleThrottle(60.0, lambda: now[0])

    assert [throttle.first("away"), throttle.first("away"), throttle.first("refused")] == [
        True,
        False,
        True,
    ]
    now[0] += 61
    assert throttle.first("away")


def test_an_unavailable_broker_is_logged_once_for_all_clients() -> None:
    throttle = ConsoleThrottle(60.0)
    clients = [quiet({}, throttle=throttle)["error_cb"] for _ in range(3)]

    with capture_logs() as lines:
        for tell in clients:
            tell(KafkaError(KafkaError._TRANSPORT))
            tell(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    assert [line["event"] for line in lines] == ["broker_unavailable"]


def test_a_missing_partition_fails_its_delivery() -> None:
    publisher = KafkaPublisher({"test.mock.num.brokers": 1})
    publisher.send("t", "k", b"v", partition=0)
    assert publisher.flush(10.0) == 0

    publisher.send("t", "k", b"v", partition=99)

    with pytest.raises(DeliveryFailed, match="t cannot be written to: partition 99"):
        publisher.poll()


def test_the_sender_is_notified_of_a_refused_record() -> None:
    publisher, told = KafkaPublisher({"test.mock.num.brokers": 1}), list[WorkFailed]()
    cause = Cause()
    publisher.send("t", "k", b"v", partition=0)
    assert publisher.flush(10.0) == 0

    def instead(error: WorkFailed) -> None:
        told.append(error)
        publisher.send("t", "k", b"instead", partition=0, cause=cause)

    publisher.send("t", "k", b"v", partition=99, cause=cause, refused=instead)
    assert publisher.flush(30.0) == 0

    assert [error.code for error in told] == ["no_topic"]
    assert (cause.sent, cause.acked) == (2, 2)


def test_acks_are_counted_by_the_owner_from_any_thread() -> None:
    publisher, cause = KafkaPublisher({"test.mock.num.brokers": 1}), Cause()
    publisher.send("t", "k", b"v", partition=0, cause=cause)

    other = threading.Thread(target=lambda: _pushed_until_acked(publisher))
    other.start()
    other.join(30.0)

    assert not other.is_alive()
    assert (publisher.waiting(), cause.sent, cause.acked) == (0, 1, 0)
    publisher.poll()
    assert cause.acked == 1


def _pushed_until_acked(publisher: KafkaPublisher) -> None:
    while publisher.waiting():
        publisher.push()
        publisher._producer.flush(0.1)


def test_a_record_refused_for_its_size_is_retried_alone() -> None:
    """Brokers measure whole batches: one of many may go through where all of them do not."""
    publisher, told = KafkaPublisher({"test.mock.num.brokers": 1}), list[WorkFailed]()
    sent = Outgoing("t", "k", b"v" * 100, 0, refused=told.append)
    large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)

    publisher._given_up(large, sent)
    assert (publisher.waiting(), told) == (1, [])
    assert publisher.flush(10.0) == 0
    assert told == [], "alone it fits"
    publisher._given_up(large, sent)
    publisher.poll()

    assert [(error.code, str(error).split(" for ")[0]) for error in told] == [
        ("too_large", "a record of 100 bytes")
    ]


def test_fatal_errors_are_kept_for_the_clients_owner() -> None:
    fatal: list[KafkaError] = []
    tell = quiet({}, fatal, throttle=ConsoleThrottle(60.0))["error_cb"]

    tell(KafkaError(KafkaError._FATAL, "gone", True))

    assert [error.str() for error in fatal] == ["gone"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.configs(["t"]),
        lambda admin: admin.topic_ids(["t"]),
        lambda admin: admin.bounds([("t", 0)]),
        lambda admin: admin.members(["g"]),
    ],
)
def test_requests_to_an_unavailable_broker_time_out(
    ask: Callable[[Admin], object],
) -> None:
    admin = Admin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.5)
    began = time.monotonic()

    with pytest.raises(Unavailable):
        ask(admin)

    assert time.monotonic() - began < 10


class Offset:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def result(self) -> "Offset":
        return self


class Electing:
    """An admin client to which the partition has no leader at first."""

    def __init__(self) -> None:
        self.offsets = [Offset(-1001), Offset(7)]

    def list_offsets(self, wanted: dict[Any, Any], **options: Any) -> dict[Any, Offset]:
        return {tp: self.offsets.pop(0) for tp in wanted}

    def list_topics(self, *arguments: Any, **options: Any) -> None:
        return None


def test_a_partition_without_a_leader_is_retried() -> None:
    admin = Admin({"bootstrap.servers": "127.0.0.1:1"})
    admin._client = Electing()

    assert admin.ends({"t": 1}) == {("t", 0): 7}
