"""Kafka's producer and admin client; no other module knows either.

A record that Kafka gives up ends the process without a commit: the log has not moved, and the
restart does the work again. There is no partial recovery.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    MemberDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from schemas.errors import DeliveryFailed, NoTopic, Refused, TooLarge, Unavailable, WorkFailed
from schemas.headers import Headers
from schemas.topics import WantedTopic

VALUE_LIMIT_BYTES = 1_000_000
"""Below every topic's max.message.bytes, with room for key, headers and batch."""
LETTER_LIMIT_BYTES = 2_000_000
QUEUE_RECORDS = 50_000
RETRY_S = 0.1
REFRESH_S = 10.0
GROWTH_S = 3.0
"""What brokers have to hear of partitions that were added."""
SAY_AGAIN_S = 300.0
AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
}
"""One and the same thing to people: nobody answers."""
BURST = 1024
"""Records handed to the client together, so that they leave in batches although nothing lingers."""
FAST = {"linger.ms": 0, "compression.type": "lz4"}
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
"""What concerns one topic, not the process. A batch may be too large where none of its records is,
and what was on its way when its topic went is given up as if the broker did: these are tried once
more, alone."""
ALONE_S = 1.0

DONE_BEFORE = {
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.GROUP_ID_NOT_FOUND,
}
"""What a broker answers where nothing is left to do."""

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Member:
    """A process in a consumer group, and the partitions in its hands."""

    group: str
    client_id: str
    partitions: tuple[tuple[str, int], ...]


class Cause(Protocol):
    """Whatever waits for acks: a record in hand."""

    sent: int
    acked: int


class Said:
    """What this process has said of its brokers lately; all its clients see the same ones."""

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._at: dict[str, float] = {}

    def first(self, what: str) -> bool:
        """Whether nobody has said so for a while; it counts as said then."""
        now = self._clock()
        if now - self._at.get(what, -self._again_s) < self._again_s:
            return False
        self._at[what] = now
        return True


SAID = Said(SAY_AGAIN_S)


def quiet(
    settings: Mapping[str, Any], fatal: list[KafkaError] | None = None, *, said: Said = SAID
) -> dict[str, Any]:
    """Client settings whose connection errors are said once, not by every client and every try.

    Fatal ones are put into `fatal`: raising inside a callback would come out as something else.
    """

    def once(error: KafkaError) -> None:
        if error.fatal() and fatal is not None:
            fatal.append(error)
        away = error.code() in AWAY
        if said.first("away" if away else error.name()):
            log.warning("broker_away" if away else "broker_error", error=error.str())

    return {"error_cb": once, "log.connection.close": False, "log_level": 2, **settings}


@dataclass(slots=True)
class Sent:
    """One record on its way, and whom to tell what became of it."""

    topic: str
    value: bytes | None
    key: str | bytes | None
    partition: int | None
    headers: Headers | None
    cause: Cause | None
    refused: Callable[[WorkFailed], None] | None
    alone: bool = False
    """Whether it is tried once more, by itself."""


class KafkaPublisher:
    """A producer driven by one thread: acks are counted when that thread polls."""

    def __init__(self, settings: Mapping[str, Any], *, bulk: bool = False) -> None:
        lane = BULK if bulk else FAST
        self._fatal: list[KafkaError] = []
        self._producer = Producer(quiet({**COMMON, **lane, **settings}, self._fatal))
        self._failed: DeliveryFailed | None = None
        self.acked_ms = 0
        self._gathered: deque[Sent] = deque()
        self._alone: deque[Sent] = deque()
        """Refused together with others; each is tried once more by itself."""
        self._refused: deque[tuple[WorkFailed, Sent]] = deque()

    def send(
        self,
        topic: str,
        key: str | bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        cause: Cause | None = None,
        refused: Callable[[WorkFailed], None] | None = None,
    ) -> None:
        """Gather; a burst goes out when it is full, and with the next `push`, `poll` or `flush`.

        Handed over one by one they would leave one by one, and the broker would do nothing else.
        """
        limit = LETTER_LIMIT_BYTES if topic.endswith("dead.letters") else VALUE_LIMIT_BYTES
        if value is not None and len(value) > limit:
            raise TooLarge(topic, len(value), limit)
        if cause is not None:
            cause.sent += 1
        self._gathered.append(Sent(topic, value, key, partition, headers, cause, refused))
        if len(self._gathered) >= BURST:
            self.push()

    def push(self) -> None:
        """Hand over what was gathered; from any thread."""
        while self._gathered and not self._alone:
            try:
                sent = self._gathered.popleft()
            except IndexError:  # another thread was quicker
                return
            self._produce(sent)

    def _produce(self, sent: "Sent") -> None:
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
        """Ask for the partitions of a topic that has grown.

        The client would learn it in five minutes by itself, and refuse the record until then.
        """
        with suppress(KafkaException):
            self._producer.list_topics(topic, timeout=REFRESH_S)
        self._producer.poll(RETRY_S)

    def _report(self, sent: "Sent") -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acked_ms = message.timestamp()[1]
                if sent.cause is not None:
                    sent.cause.acked += 1
            elif error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                self._given_up(error, sent)

        return report

    def _given_up(self, error: KafkaError, sent: "Sent") -> None:
        """Sort what became of a record: its topic will not have it, or nobody answers."""
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
        """Try alone what was refused with others; tell whoever sent it of what remains refused."""
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


class Admin:
    """What provisioning and looking at a cluster need."""

    def __init__(self, settings: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
        self._client = AdminClient(quiet(settings))
        self._timeout_s = timeout_s
        self._servers = settings.get("bootstrap.servers", "")

    def answers(self) -> bool:
        """Whether the cluster answers a metadata request."""
        try:
            self._client.list_topics(timeout=self._timeout_s)
        except KafkaException:
            return False
        return True

    def partitions(self) -> dict[str, int]:
        """Every topic and its partition count; raises Unavailable."""
        try:
            found = self._client.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            msg = (
                f"no broker answers at {self._servers!r} within {self._timeout_s:g} s; "
                "run `rollcall up`, or set ROLLCALL_KAFKA__BOOTSTRAP_SERVERS"
            )
            raise Unavailable(msg) from error
        return {name: len(topic.partitions) for name, topic in found.items()}

    def groups(self) -> list[str]:
        """The name of every consumer group; raises Unavailable."""
        asked = self._client.list_consumer_groups(request_timeout=self._timeout_s)
        try:
            return sorted(group.group_id for group in asked.result().valid)
        except KafkaException as error:
            msg = f"the consumer groups are not to be had: {error.args[0].str()}"
            raise Unavailable(msg) from error

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic's incarnation; raises Unavailable."""
        from confluent_kafka import TopicCollection

        def ask() -> dict[str, str]:
            described = self._client.describe_topics(
                TopicCollection(list(topics)), request_timeout=self._timeout_s
            )
            return {name: str(future.result().topic_id) for name, future in described.items()}

        return self._asked(ask, f"the ids of {', '.join(topics)}")

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Each topic's settings; raises Unavailable."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not resources:
            return {}

        def ask() -> dict[str, dict[str, str]]:
            described = self._client.describe_configs(resources, request_timeout=self._timeout_s)
            return {
                resource.name: {name: entry.value for name, entry in future.result().items()}
                for resource, future in described.items()
            }

        return self._asked(ask, f"the settings of {', '.join(topics)}")

    def create(self, topics: Iterable[WantedTopic]) -> None:
        wanted = [
            NewTopic(t.name, t.partitions, t.replication, config=dict(t.config)) for t in topics
        ]
        if wanted:
            self._wait(self._client.create_topics(wanted))
            self._until_listed({topic.topic for topic in wanted})

    def _until_listed(self, topics: set[str]) -> None:
        """The controller has made them; a broker hears of it a moment later."""
        until = time.monotonic() + self._timeout_s
        while not topics <= self.partitions().keys():
            if time.monotonic() > until:
                msg = f"{', '.join(sorted(topics))} were made, but no broker lists them yet"
                raise Unavailable(msg)
            time.sleep(RETRY_S)

    def add_partitions(self, counts: Mapping[str, int]) -> None:
        if counts:
            grown = [NewPartitions(name, count) for name, count in counts.items()]
            self._wait(self._client.create_partitions(grown))

    def alter(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        resources = []
        for topic, settings in configs.items():
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in settings.items()
            ]
            resources.append(ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries))
        if resources:
            self._wait(self._client.incremental_alter_configs(resources))

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; those that are gone already are passed over. Raises Refused."""
        if names:
            self._wait(self._client.delete_topics(list(names)))

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete consumer groups that nobody is in, with their offsets. Raises Refused."""
        if names:
            self._wait(self._client.delete_consumer_groups(list(names)))

    def _wait(self, futures: Mapping[Any, Any]) -> None:
        for thing, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() in DONE_BEFORE:
                    continue
                msg = f"the broker refuses {thing}: {error.args[0].str()}"
                raise Refused(msg) from error

    def ends(self, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """The end offset of every partition; raises Unavailable."""
        partitions = [(topic, n) for topic, count in topics.items() for n in range(count)]
        return self._offsets(partitions, OffsetSpec.latest())

    def bounds(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Where each partition begins now, and its end as a committed reader sees it."""
        starts = self._offsets(partitions, OffsetSpec.earliest())
        ends = self._offsets(partitions, OffsetSpec.latest())
        return {tp: (start, ends[tp]) for tp, start in starts.items()}

    def _offsets(
        self, partitions: Collection[tuple[str, int]], which: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        """A topic that was just made or grown has no leader for a moment, so it is asked again."""
        asked = {TopicPartition(*tp): which for tp in partitions}
        if not asked:
            return {}

        def ask() -> dict[tuple[str, int], int]:
            found = self._client.list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._timeout_s,
            )
            return {(tp.topic, tp.partition): e.result().offset for tp, e in found.items()}

        names = ", ".join(sorted({topic for topic, _ in partitions}))
        return self._asked(ask, f"the offsets of {names}")

    def _asked(self, ask: Callable[[], T], what: str) -> T:
        """Ask until it is answered; raises Unavailable, naming what was asked for."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                if time.monotonic() > until:
                    msg = f"{what} are not to be had: {error.args[0].str()}"
                    raise Unavailable(msg) from error
            # What the client knows of a topic that has grown, or of leaders after a restart of the
            # broker, is asked for anew by this alone.
            self.answers()
            time.sleep(RETRY_S)

    def members(self, groups: Sequence[str]) -> list[Member]:
        """Who is in some groups now, and with which partitions; raises Unavailable.

        The first question about a group that nobody ever joined is answered with an error.
        """
        if not groups:
            return []

        def ask() -> list[Member]:
            asked = self._client.describe_consumer_groups(
                list(groups), request_timeout=self._timeout_s
            )
            return [
                Member(group, member.client_id, _assigned(member))
                for group, future in asked.items()
                for member in future.result().members
            ]

        return self._asked(ask, f"the members of {', '.join(groups)}")


def _assigned(member: MemberDescription) -> tuple[tuple[str, int], ...]:
    held = member.assignment.topic_partitions if member.assignment else []
    return tuple((tp.topic, tp.partition) for tp in held)
