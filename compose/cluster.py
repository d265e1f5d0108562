"""The cluster that a command uses: one named in the settings, or that of `rollcall up`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from rollcall.compose import store_identity
from rollcall.compose.schema_ids import SchemaIds
from rollcall.compose.settings import Settings
from rollcall.schemas.errors import Refused
from rollcall.schemas.topics import Topics, WantedTopic, wanted

if TYPE_CHECKING:
    from rollcall.consumers.log.kafka_log import KafkaLog
    from rollcall.producers.admin import Admin
    from rollcall.schemas.codec import Codec
    from rollcall.schemas.objects import ObjectStore
    from rollcall.schemas.registry import HttpRegistry


@dataclass(frozen=True)
class Cluster:
    """Addresses and client settings of a cluster; clients are made on first use."""

    bootstrap_servers: str
    registry_url: str
    settings: Settings
    name: str = ""
    """The client id: a worker's name, so that a group's members can be told apart."""

    @property
    def topics(self) -> Topics:
        return Topics(self.settings.prefix)

    @property
    def client(self) -> dict[str, str]:
        name = {"client.id": self.name} if self.name else {}
        return {"bootstrap.servers": self.bootstrap_servers, **name, **self.settings.kafka.client}

    @cached_property
    def registry(self) -> "HttpRegistry":
        from rollcall.schemas.registry import HttpRegistry

        return HttpRegistry(self.registry_url, self.settings.registry.client)

    @cached_property
    def codec(self) -> "Codec":
        from rollcall.schemas.codec import Codec
        from rollcall.schemas.schema_memory import SchemaMemory

        objects = self.objects or store_identity.NoStore(self)
        ids = SchemaIds(lambda: self.log, self.topics.stores)
        return Codec(self.registry, objects=objects, memory=SchemaMemory(ids.first))

    @cached_property
    def objects(self) -> "ObjectStore | None":
        """Return the store of heavy records; None if no store is set that all workers can reach.

        The store raises StoresDiffer if it is not the cluster's.
        """
        from rollcall.schemas.objects import ObjectStore

        url, above_bytes = self.settings.objects.url, self.settings.objects.above_bytes
        if not url and _on_this_machine(self.bootstrap_servers):
            url = str(self.settings.state() / "services" / "objects")
        identify = partial(store_identity.identify, self)
        return ObjectStore(url, above_bytes=above_bytes, identify=identify) if url else None

    @cached_property
    def log(self) -> "KafkaLog":
        from rollcall.consumers.log.kafka_log import KafkaLog

        return KafkaLog(self.client)

    @cached_property
    def admin(self) -> "Admin":
        from rollcall.producers.admin import Admin

        return Admin(self.client)

    def close(self) -> None:
        """Close the clients that were made for reading."""
        for name in ("log", "registry"):
            if name in self.__dict__:  # a cached property that was used
                self.__dict__[name].close()

    def environment(self) -> dict[str, str]:
        """Return the environment with which a worker process finds the same cluster."""
        return {
            "ROLLCALL_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "ROLLCALL_REGISTRY__URL": self.registry_url,
            "ROLLCALL_STATE_DIR": str(self.settings.state()),
        }


def _on_this_machine(servers: str) -> bool:
    hosts = {server.rpartition(":")[0] for server in servers.split(",")}
    return hosts <= {"127.0.0.1", "localhost", "[::1]"}


def require_topics(cluster: Cluster) -> None:
    """Raise TopicsDiffer unless topics and schemas are those that workers need.

    Raises Unavailable, and RegistryDiffers if the log was written with another registry.
    """
    from rollcall.producers import provision

    topics = wanted(cluster.settings.prefix, [])
    provision.require(cluster.admin, cluster.registry, topics)
    _tie_schemas(cluster, topics)


def complete_topics(cluster: Cluster, policy_id: str) -> None:
    """Create the missing topics and schemas of a policy's workers.

    Raises TopicsDiffer, Unavailable, and RegistryDiffers as `require_topics` does.
    """
    from rollcall.producers import provision

    topics = wanted(cluster.settings.prefix, [policy_id])
    provision.complete(cluster.admin, cluster.registry, topics)
    _tie_schemas(cluster, topics)


def _tie_schemas(cluster: Cluster, topics: Sequence[WantedTopic]) -> None:
    """Raise RegistryDiffers if the ids of our schemas are not those recorded in the log."""
    there = set(cluster.log.topic_names())
    cluster.codec.prepare_all({t.name: t.record for t in topics if t.record and t.name in there})


def answers(servers: str) -> bool:
    """Return True if a broker lists its topics, which `services.up` waits for."""
    from rollcall.producers.admin import Admin

    return Admin({"bootstrap.servers": servers}, timeout_s=2.0).answers()


def cluster_of(settings: Settings) -> Cluster:
    """Return the cluster to connect to; raises Refused if none is named and none is up."""
    kafka, registry = settings.kafka.bootstrap_servers, settings.registry.url
    if not (kafka and registry):
        from rollcall.compose.services.embedded import endpoints

        up = endpoints(settings.state())
        if up is None and not (kafka or registry):
            msg = (
                f"no broker is up in {settings.state_dir}; run `rollcall up`, or set "
                "ROLLCALL_KAFKA__BOOTSTRAP_SERVERS and ROLLCALL_REGISTRY__URL"
            )
            raise Refused(msg)
        if up is None:
            missing = "ROLLCALL_REGISTRY__URL" if kafka else "ROLLCALL_KAFKA__BOOTSTRAP_SERVERS"
            msg = f"{missing} is not set, and no broker is up in {settings.state_dir}"
            raise Refused(msg)
        kafka, registry = kafka or up.bootstrap_servers, registry or up.registry_url
    return Cluster(kafka, registry, settings)
