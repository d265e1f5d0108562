"""One broker and registry for the whole run; a prefix of its own for every test that asks."""

import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Tp
from confluent_kafka.admin import AdminClient

from compose.cluster import Cluster, answers
from compose.services.embedded import Endpoints, down, up
from compose.settings import Kafka, Registry, Settings
from consumers.log.kafka_log import KafkaLog
from producers import provision
from producers.admin import Admin
from schemas.topics import WantedTopic, wanted

PREFIXES = count()
BROKER = {
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.heartbeat.interval.ms": "500",
}


def users_cache() -> Path:
    """The user's own cache, so that only a machine's first run downloads 200 MB."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollcall"


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """The embedded broker and registry, taken down and wiped at the end."""
    state = tmp_path_factory.mktemp("services")
    yield up(state, users_cache(), ready=answers, broker_properties=BROKER)
    down(state, wipe=True)


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


@pytest.fixture(scope="session")
def kafka_log(services: Endpoints) -> Iterator[BrokerLog]:
    log = BrokerLog(services.bootstrap_servers)
    yield log
    log.close()


@pytest.fixture
def make_cluster(services: Endpoints, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Clusters with topics under a prefix of their own, on the one broker."""
    made: list[Cluster] = []

    def make(*policies: str, **given: Any) -> Cluster:
        settings = Settings(
            state_dir=tmp_path / "state",
            prefix=given.pop("prefix", f"t{next(PREFIXES)}."),
            kafka=Kafka(bootstrap_servers=services.bootstrap_servers),
            registry=Registry(url=services.registry_url),
            **given,
        )
        made.append(Cluster(services.bootstrap_servers, services.registry_url, settings))
        topics = wanted(settings.prefix, policies, partitions=4)
        provision.apply(made[-1].admin, made[-1].registry, topics)
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
