"""Which broker errors are waited out, which end the process, and which messages polls return."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Tp

from rollcall.consumers.log import kafka_log
from rollcall.consumers.log.kafka_log import Batches, KafkaReader, KafkaSource, TopicWatch, retried
from rollcall.consumers.log.protocols import Commit, Held, TopicPartition
from rollcall.producers.admin import PartitionBounds
from rollcall.producers.error_codes import VERDICTS, ErrorReaction
from rollcall.schemas.errors import Unavailable, Unfit


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_start_up_errors_of_a_broker_are_waited_out(code: int) -> None:
    answers: list[int | None] = [code, None]

    def ask() -> str:
        refusal = answers.pop(0)
        if refusal is not None:
            raise KafkaException(KafkaError(refusal))
        return "offsets"

    assert retried(ask) == "offsets"


def test_a_permanent_broker_error_ends_the_process() -> None:
    def ask() -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    with pytest.raises(Unfit, match="the broker refuses"):
        retried(ask)


class Fenced:
    """Knows of no leaders, as brokers say while one of them is fenced, then does again."""

    def __init__(self) -> None:
        self.asked = 0

    def stretches(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionBounds]:
        self.asked += 1
        if self.asked < 3:
            msg = "Failed to query partition leaders: No leaders found"
            raise Unavailable(msg)
        return dict.fromkeys(partitions, PartitionBounds(2, 9))

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")


class Given:
    """A client that is given a partition."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.starts: list[Any] = []

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def resume(self, partitions: list[Any]) -> None:
        """Nothing was paused."""

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        return partitions

    def incremental_assign(self, starts: list[Any]) -> None:
        self.starts += starts


class Starts:
    def assigned(self, held: Held) -> int:
        return held.log_start


def test_an_assignment_waits_for_partition_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_log, "Consumer", Given)
    admin, listener = Fenced(), Starts()
    client: Any = KafkaSource({}, admin, "g", ["t"], listener)._consumer

    client.callbacks["on_assign"](client, [Tp("t", 0)])

    assert [(tp.topic, tp.partition, tp.offset) for tp in client.starts] == [("t", 0, 2)]
    assert admin.asked == 3


class Message:
    def __init__(self, partition: int, offset: int) -> None:
        self.at = partition, offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.at[0]


class Consumer:
    """Gives one message, then more, while a partition may leave and come back."""

    def __init__(self, leaves: int) -> None:
        self.batches: Batches
        self.leaves = leaves

    def poll(self, timeout_s: float) -> Message:
        self.batches.left |= {("t", 0)}  # a revocation before the first message is ignored
        return Message(0, 7)

    def consume(self, most: int, timeout_s: float) -> list[Message]:
        self.batches.left |= {("t", self.leaves)}
        return [Message(0, 5), Message(1, 9)]


@pytest.mark.parametrize(
    ("leaves", "given"), [(0, [(0, 5), (1, 9)]), (1, [(0, 7), (0, 5), (1, 9)])]
)
def test_a_message_of_a_meanwhile_revoked_partition_is_not_delivered(
    leaves: int, given: Any
) -> None:
    consumer: Any = Consumer(leaves)
    consumer.batches = Batches(consumer)

    taken: Any = consumer.batches.poll_batch(0.1, 500)

    assert [message.at for message in taken] == given


class LateToTheLast:
    """A client of which the group gives a partition while it leaves, and takes it again."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.given_back: list[Any] = []

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def unsubscribe(self) -> None:
        """Nothing is assigned yet."""

    def assignment(self) -> list[Any]:
        return []

    def list_topics(self, topic: str, timeout: float) -> None:
        """Its broker answers."""

    def close(self) -> None:
        self.callbacks["on_assign"](self, [Tp("t", 0)])
        self.callbacks["on_revoke"](self, [Tp("t", 0)])

    def resume(self, partitions: list[Any]) -> None:
        """Nothing was paused."""

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.given_back += partitions


class Told:
    def __init__(self) -> None:
        self.partitions: list[TopicPartition] = []

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self.partitions += partitions


def test_a_partition_assigned_during_a_leave_is_given_back_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a client that, as librdkafka does, answers no question while it is closed
    monkeypatch.setattr(kafka_log, "Consumer", LateToTheLast)
    listener = Told()
    source = KafkaSource({}, None, "g", ["t"], listener)

    source.close()

    assert listener.partitions == []
    assert [tp.topic for tp in source._consumer.given_back] == ["t"]


class TakesBackInPolls(LateToTheLast):
    """A client that has partitions taken back in a poll; one that closes with any waits for
    itself for ever, if a rebalance is under way."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.assigned, self.subscribed = [Tp("t", 0), Tp("t", 1)], True

    def unsubscribe(self) -> None:
        self.subscribed = False

    def assignment(self) -> list[Any]:
        return self.assigned

    def poll(self, timeout_s: float) -> None:
        if not self.subscribed:
            self.callbacks["on_revoke"](self, self.assigned)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        super().incremental_unassign(partitions)
        self.assigned = []

    def close(self) -> None:
        assert not self.assigned


def test_a_members_partitions_are_given_back_before_its_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_log, "Consumer", TakesBackInPolls)
    source: Any = KafkaSource({}, None, "g", ["t"], Told())

    source.close()

    assert [tp.partition for tp in source._consumer.given_back] == [0, 1]


class BrokerGone(LateToTheLast):
    """A client without a broker; a last commit would wait long for its coordinator."""

    def list_topics(self, topic: str, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def commit(self, **words: Any) -> None:
        pytest.fail("nobody is there to commit to")

    def close(self) -> None:
        self.callbacks["on_revoke"](self, [Tp("t", 0)])


def test_a_member_without_a_broker_leaves_without_a_last_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_log, "Consumer", BrokerGone)
    source: Any = KafkaSource({}, None, "g", ["t"], listener := Told())
    listener.revoked = lambda partitions: source.commit_now([Commit("t", 0, 5, "")])

    source.close()

    assert source.refused == 1


CODES = sorted(getattr(KafkaError, name) for name in VERDICTS.keys() - {"NO_ERROR"})


class Answered(Given):
    """A client that gets an error for its first offset request, in one of two ways."""

    code = 0
    of_partition = False
    always = False

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.asked = 0

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        self.asked += 1
        if self.asked > 1 and not self.always:
            return [Tp(tp.topic, tp.partition, 70) for tp in partitions]
        error = KafkaError(self.code)
        if not self.of_partition:
            raise KafkaException(error)
        return [WithError(tp.topic, tp.partition, error) for tp in partitions]


class WithError:
    """A partition of an answer, with an error and no offset."""

    offset, metadata, leader_epoch = -1001, "", None

    def __init__(self, topic: str, partition: int, error: KafkaError) -> None:
        self.topic, self.partition, self.error = topic, partition, error


class Bounds:
    def stretches(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionBounds]:
        return dict.fromkeys(partitions, PartitionBounds(0, 100))

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")


class Place:
    def assigned(self, held: Held) -> int:
        return held.log_start if held.committed is None else held.committed


@pytest.mark.parametrize("of_partition", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_any_error_code_at_assignment_is_waited_out_or_fatal(
    monkeypatch: pytest.MonkeyPatch, code: int, of_partition: bool
) -> None:
    answered = type("_", (Answered,), {"code": code, "of_partition": of_partition})
    monkeypatch.setattr(kafka_log, "Consumer", answered)
    monkeypatch.setattr(kafka_log, "RETRY_S", 0.0)
    admin: Any = Bounds()
    client: Any = KafkaSource({}, admin, "g", ["t"], Place())._consumer  # type: ignore[arg-type]
    assign = lambda: client.callbacks["on_assign"](client, [Tp("t", 0)])  # noqa: E731

    if VERDICTS[KafkaError(code).name()] is ErrorReaction.FATAL:
        with pytest.raises(Unfit, match="the broker refuses"):
            assign()
        return
    assign()

    assert [tp.offset for tp in client.starts] == [70]


@pytest.mark.parametrize("code", CODES)
def test_a_fatal_commit_error_ends_the_process_others_are_counted(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Refuses(Given):
        def commit(self, offsets: list[Any], asynchronous: bool) -> None:
            raise KafkaException(KafkaError(code))

        def poll(self, timeout_s: float) -> None:
            return None

    monkeypatch.setattr(kafka_log, "Consumer", Refuses)
    admin: Any = Bounds()
    source = KafkaSource({}, admin, "g", ["t"], Place())  # type: ignore[arg-type]

    source.commit([Commit("t", 0, 5, "")])

    assert source.refused == 1
    if VERDICTS[KafkaError(code).name()] is ErrorReaction.FATAL:
        with pytest.raises(Unfit, match="consumer cannot continue"):
            source.poll(0.0)
    else:
        assert source.poll(0.0) == []


def test_an_assignment_after_lost_membership_is_tolerated_until_it_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a group that refuses this member for good
    always = {"code": KafkaError.UNKNOWN_MEMBER_ID, "always": True}
    monkeypatch.setattr(kafka_log, "Consumer", type("_", (Answered,), {**always, "poll": _nothing}))
    monkeypatch.setattr(kafka_log, "MEMBER_S", 0.0)
    monkeypatch.setattr(kafka_log, "RETRY_S", 0.0)
    admin: Any = Bounds()
    source: Any = KafkaSource({}, admin, "g", ["t"], listener := Told())  # type: ignore[arg-type]
    client = source._consumer
    client.incremental_unassign = lambda partitions: client.starts.clear()

    client.callbacks["on_assign"](client, [Tp("t", 0)])

    # Then nothing is read of it, and the client may tell that it is lost
    assert [tp.offset for tp in client.starts] == [OFFSET_END]
    assert source.poll(0.0) == []
    client.callbacks["on_revoke"](client, [Tp("t", 0)])
    assert (client.starts, listener.partitions) == ([], [])

    # And without a revocation, the process ends
    monkeypatch.setattr(kafka_log, "PLACE_S", -1.0)
    client.callbacks["on_assign"](client, [Tp("t", 0)])
    with pytest.raises(Unavailable, match="assigned t 0, but gave no commit"):
        source.poll(0.0)


def _nothing(client: Any, timeout_s: float) -> None:
    """Give no message."""


class OnlyReads:
    """A client that can be read from, and be asked nothing: an answer would keep the loop."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.assigned: list[tuple[int, int]] = []

    def assign(self, partitions: list[Tp]) -> None:
        self.assigned += [(tp.partition, tp.offset) for tp in partitions]

    incremental_assign = assign

    def poll(self, timeout_s: float) -> None:
        """Nothing has come."""


class Asked:
    """An admin client that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def ask_topic_ids(self, topics: list[str]) -> dict[str, Future[Any]]:
        self.asked.append(Future())
        return dict.fromkeys(topics, self.asked[-1])

    def answer(self, partitions: int) -> None:
        told = SimpleNamespace(topic_id="id", partitions=[None] * partitions)
        self.asked[-1].set_result(told)


def reader_that_asks(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaReader, Any, Asked]:
    """A reader that has caught up and is due to ask; with its client and admin."""
    monkeypatch.setattr(kafka_log, "Consumer", OnlyReads)
    monkeypatch.setattr(kafka_log, "WATCH_S", -1.0)
    admin: Any = Asked()
    watch = TopicWatch(admin, "")
    watch.note({"t": "id"})
    reader = KafkaReader({}, watch, {("t", 0): (0, 0)}, {})
    return reader, reader._consumer, admin


def test_a_reader_does_not_block_on_asking_for_added_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the connection of its fetches an answer took up to half a second, every five."""
    reader, client, admin = reader_that_asks(monkeypatch)
    for _ in range(3):
        assert reader.poll(0) == []
    assert (len(admin.asked), client.assigned) == (1, [(0, 0)])

    for _ in range(2):  # answered twice, they are read once
        admin.answer(3)
        for _ in range(2):
            reader.poll(0)
        assert client.assigned[1:] == [(1, OFFSET_BEGINNING), (2, OFFSET_BEGINNING)]


def test_a_reader_asks_again_after_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, client, admin = reader_that_asks(monkeypatch)
    reader.poll(0)
    admin.asked[-1].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    for _ in range(2):
        reader.poll(0)
    admin.answer(2)
    reader.poll(0)
    assert client.assigned[1:] == [(1, OFFSET_BEGINNING)]
