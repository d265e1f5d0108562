"""The topic manifest, read from `topics.toml`, and the names of topics and groups."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from rollcall.schemas import messages
from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import describe_value

DAY_MS = 86_400_000
POLICY_ID = re.compile(r"[a-z0-9-]{1,200}")


@dataclass(frozen=True)  # no slots: cached_property needs a `__dict__`
class Topics:
    """Full names of topics and groups under one prefix."""

    prefix: str = "rl."

    @cached_property
    def requests(self) -> str:
        return f"{self.prefix}rollout.requests"

    @cached_property
    def events(self) -> str:
        return f"{self.prefix}rollout.events"

    @cached_property
    def steps(self) -> str:
        return f"{self.prefix}env.steps"

    @cached_property
    def trajectories(self) -> str:
        return f"{self.prefix}trajectories"

    @cached_property
    def scored(self) -> str:
        return f"{self.prefix}trajectories.scored"

    @cached_property
    def versions(self) -> str:
        return f"{self.prefix}policy.versions"

    @cached_property
    def train_steps(self) -> str:
        return f"{self.prefix}train.steps"

    @cached_property
    def control(self) -> str:
        return f"{self.prefix}control"

    @cached_property
    def quotas(self) -> str:
        return f"{self.prefix}quotas"

    @cached_property
    def stores(self) -> str:
        return f"{self.prefix}stores"

    @cached_property
    def instances(self) -> str:
        return f"{self.prefix}instances"

    @cached_property
    def dead_letters(self) -> str:
        return f"{self.prefix}dead.letters"

    def calls(self, policy_id: str) -> str:
        return f"{self.prefix}model.calls.{policy_id}"

    def group(self, role: str, *parts: str) -> str:
        """Return the consumer group of a role, such as rl.models.<policy_id>."""
        return ".".join((f"{self.prefix}{role}", *parts))

    def record_of(self, topic: str) -> type | None:
        """Return the message type of a topic's values; None for dead letters.

        Raises Refused for a topic that is not in the manifest.
        """
        name = topic.removeprefix(self.prefix)
        for spec in manifest():
            if name == spec.name or (spec.per_policy and name.startswith(f"{spec.name}.")):
                return spec.record
        known = ", ".join(spec.name for spec in manifest())
        msg = f"no topic {topic!r} in the manifest; known are {known}"
        raise Refused(msg)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One entry of the manifest, before prefix and policies."""

    name: str
    record: type | None
    partitions_local: int
    partitions_cluster: int
    compatibility: str
    config: Mapping[str, str]
    per_policy: bool
    grows_with: str
    optional: bool
    earlier_policy: str
    owner: str
    key: str
    about: str


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """One topic as a cluster should have it."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    record: type | None
    compatibility: str
    grows_with: str
    optional: bool = False
    """True if workers can run without the topic."""
    earlier_policy: str = ""
    """The cleanup policy of the previous release, accepted so that both can run on one cluster."""


@cache
def manifest() -> tuple[TopicSpec, ...]:
    """Return the entries of the manifest, in order."""
    data = tomllib.loads((files("rollcall.schemas") / "topics.toml").read_text())
    return tuple(_spec(name, entry, data["defaults"]) for name, entry in data["topics"].items())


def _spec(name: str, entry: Mapping[str, Any], defaults: Mapping[str, str]) -> TopicSpec:
    days = entry.get("retention_days")
    local, cluster = entry["partitions"]
    return TopicSpec(
        name=name,
        record=getattr(messages, entry["record"]) if "record" in entry else None,
        partitions_local=local,
        partitions_cluster=cluster,
        compatibility=entry.get("compatibility", ""),
        config={
            **defaults,
            "cleanup.policy": "delete",
            "retention.ms": str(days * DAY_MS if days else -1),
            **entry.get("config", {}),
        },
        per_policy=entry.get("per_policy", False),
        grows_with=entry.get("grows_with", ""),
        optional=entry.get("optional", False),
        earlier_policy=entry.get("earlier_policy", ""),
        owner=entry["owner"],
        key=entry["key"],
        about=entry["about"],
    )


def wanted(
    prefix: str, policies: Iterable[str], *, cluster: bool = False, partitions: int | None = None
) -> list[WantedTopic]:
    """Return the topics that a cluster needs; `partitions` overrides every count above one."""
    topics = []
    for spec in manifest():
        names = [f"{spec.name}.{checked(p)}" for p in policies] if spec.per_policy else [spec.name]
        count = spec.partitions_cluster if cluster else spec.partitions_local
        if partitions is not None and count > 1:
            count = partitions
        topics += [
            WantedTopic(
                name=f"{prefix}{name}",
                partitions=count,
                replication=3 if cluster else 1,
                config={**spec.config, **({"min.insync.replicas": "2"} if cluster else {})},
                record=spec.record,
                compatibility=spec.compatibility,
                grows_with=spec.grows_with,
                optional=spec.optional,
                earlier_policy=spec.earlier_policy,
            )
            for name in names
        ]
    return topics


def checked(policy_id: str) -> str:
    """Return the policy id; raise Refused if it cannot be part of a topic's name."""
    if not POLICY_ID.fullmatch(policy_id):
        found = describe_value(policy_id, most=80)
        msg = f"policy id {found} must be 1 to 200 of a-z, 0-9 and '-', as it names a topic"
        raise Refused(msg)
    return policy_id
