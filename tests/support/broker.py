"""The embedded broker as tests use it: harmed, watched, its topics made and unmade."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Tp
from confluent_kafka.admin import AdminClient

from rollcall.consumers.log.kafka_log import KafkaLog
from rollcall.producers.admin import Admin
from rollcall.schemas.topics import WantedTopic

SESSION_S = 3
"""After this a group takes a silent member for dead: most of what a test waits after a kill."""
BROKER = {
    "group.consumer.session.timeout.ms": f"{SESSION_S * 1000}",
    "group.consumer.heartbeat.interval.ms": "300",
}


def users_cache() -> Path:
    """The user's own cache, so that only a machine's first run downloads 200 MB."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollcall"


class BrokerLog(KafkaLog):
    """A KafkaLog that can also make topics and write records, as tests of logs need."""

    def __init__(self, servers: str) -> None:
        # A topic that is not there is given up sooner than after librdkafka's half minute.
        brokers = {"bootstrap.servers": servers, "topic.metadata.propagation.max.ms": 3000}
        super().__init__(brokers)
        self.servers = servers
        self.admin = Admin({"bootstrap.servers": servers})
        self._out = self.publisher()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, or add partitions to it."""
        there = self.admin.partitions().get(topic)
        if there is None:
            self.admin.create([WantedTopic(topic, partitions, 1, {}, None, "", "")])
        if there is None or there >= partitions:
            return
        self.admin.add_partitions({topic: partitions})
        self._out = self.publisher()  # the one before does not know of them for minutes

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it anew."""
        count = self.partitions(topic)
        client = AdminClient({"bootstrap.servers": self.servers})
        client.delete_topics([topic])[topic].result(20)
        deadline = time.monotonic() + 20
        while topic in self.admin.partitions():
            assert time.monotonic() < deadline, f"{topic} is still there"
        self.create(topic, count)

    def delete(self, topic: str) -> None:
        """Delete a topic for good."""
        client = AdminClient({"bootstrap.servers": self.servers})
        client.delete_topics([topic])[topic].result(20)

    def limit(self, topic: str, value_bytes: int) -> None:
        """Let a topic take no value above this any more."""
        self.admin.alter({topic: {"max.message.bytes": str(value_bytes)}})
        reads = lambda: self.admin.configs([topic])[topic]["max.message.bytes"]  # noqa: E731
        deadline = time.monotonic() + 20
        while reads() != str(value_bytes):
            assert time.monotonic() < deadline, f"the limit of {topic} is still {reads()}"

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let retention pass an offset."""
        client = AdminClient({"bootstrap.servers": self.servers})
        for deleted in client.delete_records([Tp(topic, partition, offset)]).values():
            deleted.result(20)

    def append(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None = None
    ) -> None:
        self._out.send(topic, key, value, partition=partition)
        assert self._out.flush(20) == 0

    def transaction(
        self, topic: str, values: Iterable[bytes], partition: int = 0
    ) -> "BrokerTransaction":
        """Write records in a transaction that stays open until it is committed or aborted."""
        return BrokerTransaction(self.servers, topic, values, partition)


class BrokerTransaction:
    """Records of another producer, in a transaction of its own."""

    def __init__(self, servers: str, topic: str, values: Iterable[bytes], partition: int) -> None:
        named = f"{topic}-{partition}"
        config = {"bootstrap.servers": servers, "transactional.id": named}
        self._producer = Producer(config)
        self._producer.init_transactions(20)
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, value, b"key", partition)
        assert self._producer.flush(20) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(20)

    def abort(self) -> None:
        self._producer.abort_transaction(20)
