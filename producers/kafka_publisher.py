"""Kafka's producer; the only module that uses it.

A record that Kafka gives up ends the process without a commit: the committed offset has not moved,
and the restart does the work again. There is no partial recovery.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rollcall.producers.client_errors import checked_client, quiet
from rollcall.producers.publisher import Cause, Outgoing, Publisher
from rollcall.schemas.errors import DeliveryFailed, NoTopic, TooLarge, Unavailable, WorkFailed

QUEUE_RECORDS = 50_000
RETRY_S = 0.1
REFRESH_S = 10.0
GROWTH_S = 3.0
"""Time until brokers know of partitions that were added."""
BURST = 1024
"""Records handed to the client together, so that they leave in batches without lingering."""
LINGER_MS, LEAVE_S = 5, 0.001
"""Lingering records leave together with the next ones, but a complete burst is sent at once: by a
flush, which waits for the first acks at most this long. Without lingering, a burst's first record
would leave alone, and the client would spin until it is acked: while a partition of an idempotent
producer has more than five records in flight, the rest waits for them."""
FAST = {"linger.ms": LINGER_MS, "compression.type": "lz4"}
BULK = {"linger.ms": 20, "compression.type": "zstd", "batch.size": 1_048_576}
COMMON = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "message.timeout.ms": 120_000,
    "message.max.bytes": 2_097_152,
    "queue.buffering.max.kbytes": 65_536,
    "queue.buffering.max.messages": QUEUE_RECORDS,
    "socket.nagle.disable": True,
    "batch.num.messages": 10_000,
}
GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._DESTROY,
}
LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
"""Codes that concern one topic, not the process. A batch may be too large if none of its records
is, and records in flight when their topic is deleted are given up as if by the broker: these are
tried once more, alone."""
ALONE_S = 1.0
TRANSACTION_S = 10.0

log = structlog.get_logger()


class KafkaPublisher(Publisher):
    """A producer driven by one thread: acks are counted when that thread polls."""

    def __init__(self, settings: Mapping[str, Any], *, bulk: bool = False) -> None:
        lane = BULK if bulk else FAST
        self._fatal: list[KafkaError] = []
        self._producer = checked_client(
            Producer, quiet({**COMMON, **lane, **settings}, self._fatal), KafkaException
        )
        self._leave_s = 0.0 if bulk else LEAVE_S
        self._failed: DeliveryFailed | None = None
        self.acked_ms = 0
        self._acked: deque[Cause] = deque()
        """Causes of acked records; counted when `poll` or `flush` runs, on whichever thread."""
        self._gathered: deque[Outgoing] = deque()
        self._alone: deque[Outgoing] = deque()
        """Records refused together with others; each is tried once more by itself."""
        self._refused: deque[tuple[WorkFailed, Outgoing]] = deque()

    def _put(self, outgoing: Outgoing) -> None:
        """Queue a record; a burst leaves when it is full, or at the next `push`, `poll` or `flush`.

        One by one they would leave in batches of one, which would occupy the broker completely.
        """
        self._gathered.append(outgoing)
        if len(self._gathered) >= BURST:
            self.push()

    def push(self) -> None:
        """Hand queued records to the client and send them; from any thread."""
        handed = False
        while self._gathered and not self._alone:
            try:
                sent = self._gathered.popleft()
            except IndexError:  # another thread was quicker
                break
            self._produce(sent)
            handed = True
        if handed and self._leave_s:
            self._producer.flush(self._leave_s)

    def _produce(self, sent: Outgoing) -> None:
        named: dict[str, Any] = {"headers": sent.headers, "on_delivery": self._report(sent)}
        if sent.partition is not None:
            named["partition"] = sent.partition
        until: float | None = None
        while True:
            try:
                self._producer.produce(sent.topic, sent.value, sent.key, **named)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                until = until or time.monotonic() + GROWTH_S
                if (
                    error.args[0].code() != KafkaError._UNKNOWN_PARTITION
                    or time.monotonic() > until
                ):
                    self._given_up(error.args[0], sent)
                    return
                self._learn_of_growth(sent.topic)
            else:
                return

    def _learn_of_growth(self, topic: str) -> None:
        """Refresh the partitions of a topic that has grown.

        The client would do so by itself only after five minutes, and refuse the record until then.
        """
        with suppress(KafkaException):
            self._producer.list_topics(topic, timeout=REFRESH_S)
        self._producer.poll(RETRY_S)

    def _report(self, sent: Outgoing) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acked_ms = message.timestamp()[1]
                if sent.cause is not None:
                    self._acked.append(sent.cause)
            elif error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                self._given_up(error, sent)

        return report

    def _given_up(self, error: KafkaError, sent: Outgoing) -> None:
        """Handle a failed record: its topic refuses it, or no broker answers."""
        size_bytes = len(sent.value or b"")
        if error.code() in (*LARGE, KafkaError._DESTROY) and not sent.alone:
            sent.alone = True
            self._alone.append(sent)
        elif error.code() in LARGE:
            self._refused.append((TooLarge(sent.topic, size_bytes), sent))
        elif error.code() in GONE:
            missing = error.code() == KafkaError._UNKNOWN_PARTITION and sent.partition is not None
            reason = f"partition {sent.partition} is not there" if missing else error.str()
            self._refused.append((NoTopic(sent.topic, reason), sent))
        else:
            self._fail(f"a record for {sent.topic} was given up: {error.str()}")

    def _fail(self, reason: str) -> None:
        self._failed = self._failed or DeliveryFailed(reason)

    def _settle(self) -> None:
        """Count acks; retry alone what was refused with others; report the records that remain
        refused."""
        while self._acked:
            self._acked.popleft().acked += 1
        # A record is alone only if no other is in flight.
        while self._alone and not len(self._producer):
            self._produce(self._alone.popleft())
            self._producer.flush(ALONE_S)
        while self._refused:
            error, sent = self._refused.popleft()
            if sent.refused is None:
                self._fail(f"a record was refused, and nothing can be written instead: {error}")
                return
            log.warning("record_refused", topic=sent.topic, error=str(error))
            sent.refused(error)
            if sent.cause is not None:
                sent.cause.acked += 1

    def poll(self) -> None:
        self.push()
        self._producer.poll(0)
        self._settle()
        self._raise_what_failed()

    def flush(self, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        while True:
            self.push()
            left = int(self._producer.flush(max(0.0, until - time.monotonic())))
            self._settle()
            self._raise_what_failed()
            if left or not self.waiting() or time.monotonic() >= until:
                return self.waiting()

    def _raise_what_failed(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._fatal:
            msg = f"the producer cannot go on: {self._fatal[0].str()}"
            raise DeliveryFailed(msg)

    def waiting(self) -> int:
        return len(self._producer) + len(self._gathered) + len(self._alone)


class HeldTransaction:
    """A transaction of its own producer, open until it is aborted; for faults and tests."""

    def __init__(
        self, settings: Mapping[str, Any], name: str, topic: str, partitions: Iterable[int]
    ) -> None:
        """Write one record into each partition, which is never committed. Raises Unavailable."""
        config = {**settings, "transactional.id": name}
        self._producer = Producer(quiet(config))
        try:
            self._producer.init_transactions(TRANSACTION_S)
            self._producer.begin_transaction()
            for number in partitions:
                self._producer.produce(topic, b"", name, number)
            self._producer.flush(TRANSACTION_S)
        except KafkaException as error:
            msg = f"no transaction can be opened on {topic}: {error.args[0].str()}"
            raise Unavailable(msg) from error

    def abort(self) -> None:
        """Abort it; if no broker answers, its timeout does."""
        try:
            self._producer.abort_transaction(TRANSACTION_S)
        except KafkaException as error:
            log.warning("transaction_not_aborted", error=error.args[0].str())
