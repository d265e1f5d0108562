"""Kafka's admin client; the only module that uses it."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ListOffsetsResultInfo,
    MemberDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from rollcall.producers.client_errors import checked_client, quiet
from rollcall.producers.error_codes import ErrorReaction, reaction_to
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import NO_EPOCH
from rollcall.schemas.topics import WantedTopic

RETRY_S = 0.1
MOST_HEARD = 20
"""The number of the client's last own errors that are kept, as the reason of a silence."""
DONE_BEFORE = {
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.GROUP_ID_NOT_FOUND,
}
"""Answers of a broker if the work is already done."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A process in a consumer group, and its partitions."""

    group: str
    client_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """The first and the end offset of a partition, and its leader epoch."""

    start: int
    end: int
    epoch: int = NO_EPOCH


class Admin:
    """Operations to provision and to inspect a cluster."""

    def __init__(self, settings: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
        self._heard: deque[KafkaError] = deque(maxlen=MOST_HEARD)
        self._client = checked_client(
            AdminClient, {**quiet(settings), "error_cb": self._heard.append}, KafkaException
        )
        self._timeout_s = timeout_s
        self._servers = settings.get("bootstrap.servers", "")
        self._protocol = settings.get("security.protocol", "")

    def answers(self) -> bool:
        """Return True if the cluster answers a metadata request."""
        try:
            self._client.list_topics(timeout=self._timeout_s)
        except KafkaException:
            return False
        return True

    def partitions(self) -> dict[str, int]:
        """Return every topic with its partition count. Raises Unavailable."""
        try:
            topics = self._client.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise Unavailable(self._silence(error.args[0])) from error
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _silence(self, error: KafkaError) -> str:
        """Describe why brokers do not answer, by the client's own errors, and the remedy."""
        self._client.poll(0)  # calls the callback for its errors
        met = [each for each in self._heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
        why = (met or [error])[-1].str()
        protocol = self._protocol
        remedy = "run `rollcall up`, or set ROLLCALL_KAFKA__BOOTSTRAP_SERVERS"
        if protocol:
            remedy = f"security.protocol is {protocol!r}: is that what this listener speaks?"
        return (
            f"no broker answers at {self._servers!r} within {self._timeout_s:g} s ({why}); {remedy}"
        )

    def groups(self) -> list[str]:
        """Return the name of every consumer group. Raises Unavailable."""
        listing = self._client.list_consumer_groups(request_timeout=self._timeout_s)
        try:
            return sorted(group.group_id for group in listing.result().valid)
        except KafkaException as error:
            msg = f"the consumer groups are not to be had: {error.args[0].str()}"
            raise Unavailable(msg) from error

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the id of each topic. Raises Unavailable."""

        def ask() -> dict[str, str]:
            asked = self.ask_topic_ids(topics)
            return {name: str(future.result().topic_id) for name, future in asked.items()}

        return self._answer_to(ask, f"the ids of {', '.join(topics)}") if topics else {}

    def ask_topic_ids(self, topics: Sequence[str]) -> "Mapping[str, Future[TopicDescription]]":
        """Request the ids, without waiting."""
        described: Mapping[str, Future[TopicDescription]] = self._client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout_s
        )
        return described

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return each topic's settings. Raises Unavailable."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not resources:
            return {}

        def ask() -> dict[str, dict[str, str]]:
            described = self._client.describe_configs(resources, request_timeout=self._timeout_s)
            return {
                resource.name: {name: entry.value for name, entry in future.result().items()}
                for resource, future in described.items()
            }

        return self._answer_to(ask, f"the settings of {', '.join(topics)}")

    def create(self, topics: Iterable[WantedTopic]) -> None:
        wanted = [
            NewTopic(t.name, t.partitions, t.replication, config=dict(t.config)) for t in topics
        ]
        if wanted:
            self._wait(self._client.create_topics(wanted))
            self._until_listed({topic.topic for topic in wanted})

    def _until_listed(self, topics: set[str]) -> None:
        """Wait until brokers list new topics, a moment after the controller has made them."""
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
        """Delete topics; skip those that are gone already. Raises Refused."""
        if names:
            self._wait(self._client.delete_topics(list(names)))

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete consumer groups without members, with their offsets. Raises Refused."""
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
        """Return the end offset of every partition. Raises Unavailable."""
        partitions = [(topic, n) for topic, count in topics.items() for n in range(count)]
        return self._offsets(partitions, OffsetSpec.latest())

    def stretches(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], PartitionBounds]:
        """Return the same as `bounds`, with the leader epoch of each partition."""
        starts = self._answered(partitions, OffsetSpec.earliest())
        ends = self._answered(partitions, OffsetSpec.latest())
        return {
            tp: PartitionBounds(start.offset, ends[tp].offset, _epoch(ends[tp].leader_epoch))
            for tp, start in starts.items()
        }

    def bounds(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the low watermark of each partition, and its end for a read-committed reader."""
        starts = self._offsets(partitions, OffsetSpec.earliest())
        ends = self._offsets(partitions, OffsetSpec.latest())
        return {tp: (start, ends[tp]) for tp, start in starts.items()}

    def high_watermarks(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """Return the end of each partition, open transactions included. Raises Unavailable."""
        isolation = IsolationLevel.READ_UNCOMMITTED
        answered = self._answered(partitions, OffsetSpec.latest(), isolation)
        return {tp: int(answer.offset) for tp, answer in answered.items()}

    def _offsets(
        self, partitions: Collection[tuple[str, int]], which: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        answered = self._answered(partitions, which)
        return {tp: int(answer.offset) for tp, answer in answered.items()}

    def _answered(
        self,
        partitions: Collection[tuple[str, int]],
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        """Ask for offsets, again while there is no leader, as for a moment after a topic was
        made or grown, or after its broker died, for which the client returns a negative offset.
        """
        wanted = {TopicPartition(*tp): which for tp in partitions}
        if not wanted:
            return {}

        def ask() -> dict[tuple[str, int], ListOffsetsResultInfo]:
            offsets = self._client.list_offsets(
                wanted,
                isolation_level=isolation,
                request_timeout=self._timeout_s,
            )
            known = {(tp.topic, tp.partition): each.result() for tp, each in offsets.items()}
            if any(answer.offset < 0 for answer in known.values()):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return known

        names = ", ".join(sorted({topic for topic, _ in partitions}))
        return self._answer_to(ask, f"the offsets of {names}")

    def _answer_to(self, ask: Callable[[], T], what: str) -> T:
        """Ask until it is answered. Raises Unavailable, with the name of the request."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                said = error.args[0]
                # A partition that was just added has no leader yet: librdkafka reports _NOENT.
                leaderless = said.code() == KafkaError._NOENT
                fatal = reaction_to(said) is ErrorReaction.FATAL and not leaderless
                if fatal or time.monotonic() > until:
                    msg = f"{what} are not to be had: {error.args[0].str()}"
                    raise Unavailable(msg) from error
            # Only this makes the client refresh its metadata of a topic that grew, or of leaders
            # after a restart of the broker.
            self.answers()
            time.sleep(RETRY_S)

    def members(self, groups: Sequence[str]) -> list[GroupMember]:
        """Return the present members of some groups, with their partitions. Raises Unavailable.

        The first request about a group that no process ever joined is answered with an error.
        """
        if not groups:
            return []

        def ask() -> list[GroupMember]:
            described = self._client.describe_consumer_groups(
                list(groups), request_timeout=self._timeout_s
            )
            return [
                GroupMember(group, member.client_id, _assigned(member))
                for group, future in described.items()
                for member in future.result().members
            ]

        return self._answer_to(ask, f"the members of {', '.join(groups)}")


def _epoch(told: int | None) -> int:
    return NO_EPOCH if told is None else told


def _assigned(member: MemberDescription) -> tuple[tuple[str, int], ...]:
    held = member.assignment.topic_partitions if member.assignment else []
    return tuple((tp.topic, tp.partition) for tp in held)
