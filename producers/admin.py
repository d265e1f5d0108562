"""Kafka's admin client; no other module knows it."""

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

from producers.client_errors import checked_client, quiet
from producers.error_codes import Verdict, verdict_on
from schemas.errors import Refused, Unavailable
from schemas.messages import NO_EPOCH
from schemas.topics import WantedTopic

RETRY_S = 0.1
MOST_HEARD = 20
"""Of the client's own errors the last are kept: they say why nobody answers."""
DONE_BEFORE = {
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.GROUP_ID_NOT_FOUND,
}
"""What a broker answers where nothing is left to do."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A process in a consumer group, and the partitions in its hands."""

    group: str
    client_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a partition begins and ends, and which leader epoch it is in."""

    start: int
    end: int
    epoch: int = NO_EPOCH


class Admin:
    """What provisioning and looking at a cluster need."""

    def __init__(self, settings: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
        self._heard: deque[KafkaError] = deque(maxlen=MOST_HEARD)
        self._client = checked_client(
            AdminClient, {**quiet(settings), "error_cb": self._heard.append}, KafkaException
        )
        self._timeout_s = timeout_s
        self._servers = settings.get("bootstrap.servers", "")
        self._protocol = settings.get("security.protocol", "")

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
            topics = self._client.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise Unavailable(self._silence(error.args[0])) from error
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _silence(self, error: KafkaError) -> str:
        """What to say of brokers that do not answer: what the client met, and what to do."""
        self._client.poll(0)  # its errors are heard here
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
        """The name of every consumer group; raises Unavailable."""
        listing = self._client.list_consumer_groups(request_timeout=self._timeout_s)
        try:
            return sorted(group.group_id for group in listing.result().valid)
        except KafkaException as error:
            msg = f"the consumer groups are not to be had: {error.args[0].str()}"
            raise Unavailable(msg) from error

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic's incarnation; raises Unavailable."""

        def ask() -> dict[str, str]:
            asked = self.ask_topic_ids(topics)
            return {name: str(future.result().topic_id) for name, future in asked.items()}

        return self._answer_to(ask, f"the ids of {', '.join(topics)}") if topics else {}

    def ask_topic_ids(self, topics: Sequence[str]) -> "Mapping[str, Future[TopicDescription]]":
        """Ask for them, and wait for nothing."""
        described: Mapping[str, Future[TopicDescription]] = self._client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout_s
        )
        return described

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

        return self._answer_to(ask, f"the settings of {', '.join(topics)}")

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

    def stretches(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], Stretch]:
        """The same as `bounds`, and which leader epoch each partition is in."""
        starts = self._answered(partitions, OffsetSpec.earliest())
        ends = self._answered(partitions, OffsetSpec.latest())
        return {
            tp: Stretch(start.offset, ends[tp].offset, _epoch(ends[tp].leader_epoch))
            for tp, start in starts.items()
        }

    def bounds(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Where each partition begins now, and its end as a committed reader sees it."""
        starts = self._offsets(partitions, OffsetSpec.earliest())
        ends = self._offsets(partitions, OffsetSpec.latest())
        return {tp: (start, ends[tp]) for tp, start in starts.items()}

    def high_watermarks(
        self, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """Where each partition ends, open transactions included; raises Unavailable."""
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
        """Ask for offsets. A topic that was just made or grown has no leader for a moment, nor has
        one of a broker that just died, of which the client gives a negative offset: it is asked
        again.
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
        """Ask until it is answered; raises Unavailable, naming what was asked for."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                said = error.args[0]
                # A partition that was just added has no leader yet: librdkafka calls that _NOENT.
                leaderless = said.code() == KafkaError._NOENT
                fatal = verdict_on(said) is Verdict.FATAL and not leaderless
                if fatal or time.monotonic() > until:
                    msg = f"{what} are not to be had: {error.args[0].str()}"
                    raise Unavailable(msg) from error
            # What the client knows of a topic that has grown, or of leaders after a restart of the
            # broker, is asked for anew by this alone.
            self.answers()
            time.sleep(RETRY_S)

    def members(self, groups: Sequence[str]) -> list[GroupMember]:
        """Who is in some groups now, and with which partitions; raises Unavailable.

        The first question about a group that nobody ever joined is answered with an error.
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
