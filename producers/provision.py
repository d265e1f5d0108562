"""Provisioning: brings topics and schemas of a cluster to the state of the manifest.

A plan is a list of changes, and making it changes nothing; applying it again changes nothing
either. Topics never shrink, and the journal's topics grow together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from rollcall.producers.admin import Admin
from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.errors import TopicsDiffer
from rollcall.schemas.registry import HttpRegistry, subject_of
from rollcall.schemas.topics import WantedTopic

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Change:
    """One difference from the manifest, and the topic to change."""

    kind: str
    """create, grow, alter, register, level, or refuse."""
    topic: WantedTopic
    text: str


def plan(
    admin: Admin, registry: HttpRegistry, wanted: Sequence[WantedTopic], *, exact: bool = False
) -> list[Change]:
    """Return the changes of `apply`, in order.

    If a topic has more partitions than wanted, an operator has added them: that count is kept, and
    topics that grow together are made with it. With `exact` counts that is refused instead, since
    topics never shrink.
    """
    counts = admin.partitions()
    wanted = wanted if exact else _as_chosen(wanted, counts)
    existing = [topic for topic in wanted if topic.name in counts]
    configs = admin.configs([topic.name for topic in existing])
    changes = [change for topic in wanted for change in _counts(topic, counts)]
    for topic in existing:
        changes += _configs(topic, configs.get(topic.name, {}))
    for topic in wanted:
        changes += _schema(topic, registry)
    return changes


def _as_chosen(wanted: Sequence[WantedTopic], counts: dict[str, int]) -> list[WantedTopic]:
    """Return the topics with their larger present counts; those that grow together share one."""
    together = max((counts.get(t.name, 0) for t in wanted if t.grows_with), default=0)
    chosen = []
    for topic in wanted:
        there = max(counts.get(topic.name, 0), together if topic.grows_with else 0)
        # A topic with one partition, to keep its order, must not have more.
        count = max(topic.partitions, there) if topic.partitions > 1 else topic.partitions
        chosen.append(replace(topic, partitions=count))
    return chosen


def _counts(topic: WantedTopic, counts: dict[str, int]) -> list[Change]:
    count = counts.get(topic.name)
    if count is None:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(topic.config.items()))
        text = (
            f"create {topic.name} with {topic.partitions} partitions, "
            f"replication {topic.replication}, {settings}"
        )
        return [Change("create", topic, text)]
    if count < topic.partitions:
        text = f"grow {topic.name} from {count} to {topic.partitions} partitions"
        return [Change("grow", topic, text)]
    if count > topic.partitions:
        text = (
            f"{topic.name} has {count} partitions and cannot shrink to {topic.partitions}; "
            f"ask for at least {count} with --partitions"
        )
        return [Change("refuse", topic, text)]
    return []


def _configs(topic: WantedTopic, config: dict[str, str]) -> list[Change]:
    differing = {name: value for name, value in topic.config.items() if config.get(name) != value}
    if not differing:
        return []
    words = ", ".join(f"{name} {config.get(name)} -> {value}" for name, value in differing.items())
    return [Change("alter", topic, f"alter {topic.name}: {words}")]


def _schema(topic: WantedTopic, registry: HttpRegistry) -> list[Change]:
    if topic.record is None:
        return []
    changes = []
    if registry.id_of(topic.name, schema_text(topic.record)) is None:
        text = f"register {subject_of(topic.name)} ({topic.record.__name__})"
        changes.append(Change("register", topic, text))
    level = registry.compatibility(topic.name)
    if level != topic.compatibility:
        text = f"set {subject_of(topic.name)} to {topic.compatibility} (is {level})"
        changes.append(Change("level", topic, text))
    return changes


def apply(
    admin: Admin, registry: HttpRegistry, wanted: Sequence[WantedTopic], *, exact: bool = False
) -> list[Change]:
    """Apply a plan. Raises TopicsDiffer before any change if a part is impossible."""
    return _carry_out(admin, registry, plan(admin, registry, wanted, exact=exact))


def complete(admin: Admin, registry: HttpRegistry, wanted: Sequence[WantedTopic]) -> list[Change]:
    """Make what is missing, such as a new policy's topic, and leave existing topics as they are.

    Their settings are an operator's choice. Raises TopicsDiffer if workers could not use them.
    """
    missing = [c for c in plan(admin, registry, wanted) if c.kind in ("create", "register")]
    missing += [Change("level", c.topic, "") for c in missing if c.kind == "create"]
    done = _carry_out(admin, registry, missing)
    require(admin, registry, wanted)
    return done


def _carry_out(admin: Admin, registry: HttpRegistry, changes: list[Change]) -> list[Change]:
    refused = [change.text for change in changes if change.kind == "refuse"]
    if refused:
        raise TopicsDiffer("; ".join(refused))
    admin.create(change.topic for change in changes if change.kind == "create")
    admin.add_partitions({c.topic.name: c.topic.partitions for c in changes if c.kind == "grow"})
    admin.alter({c.topic.name: c.topic.config for c in changes if c.kind == "alter"})
    for topic in {
        c.topic.name: c.topic for c in changes if c.kind in ("register", "level")
    }.values():
        if topic.record is not None:
            registry.register(topic.name, schema_text(topic.record), topic.compatibility)
    return changes


def require(admin: Admin, registry: HttpRegistry, wanted: Sequence[WantedTopic]) -> None:
    """Raise TopicsDiffer if workers could not give their guarantees on these topics.

    Partition counts and retention times are an operator's choice. Missing topics, unknown schemas,
    a compacted journal, or journal topics of unequal counts are errors. Optional topics may be
    missing. The cleanup policy of the release before is accepted and logged: both releases work
    side by side until the last old worker has left.
    """
    counts = admin.partitions()
    existing = [topic for topic in wanted if topic.name in counts]
    missing = [topic for topic in wanted if topic.name not in counts and not topic.optional]
    wrong = [f"{topic.name} is missing" for topic in missing]
    wrong += _unequal(existing, counts)
    configs = admin.configs([topic.name for topic in existing])
    for topic in existing:
        policy = configs[topic.name].get("cleanup.policy")
        if policy is not None and policy == topic.earlier_policy:
            remedy = "run `rollcall topics apply` when every worker is of this release"
            log.warning("topic_of_earlier_release", topic=topic.name, policy=policy, remedy=remedy)
        elif policy != topic.config["cleanup.policy"]:
            wrong.append(f"{topic.name} has cleanup.policy {policy}")
        wrong += [c.text for c in _schema(topic, registry) if c.kind == "register"]
    if wrong:
        msg = f"topics differ from the manifest: {'; '.join(wrong)}; run `rollcall topics apply`"
        raise TopicsDiffer(msg)


def _unequal(topics: Sequence[WantedTopic], counts: dict[str, int]) -> list[str]:
    """Describe topics that must have the same partition count and do not."""
    together = {topic.name: counts[topic.name] for topic in topics if topic.grows_with}
    if len(set(together.values())) <= 1:
        return []
    unequal = ", ".join(f"{name} has {count}" for name, count in together.items())
    return [f"{unequal} partitions, but they must have the same number"]
