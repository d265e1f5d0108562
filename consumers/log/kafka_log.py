"""The log on Kafka; no other module uses its consumer.

One thread owns each source. Rebalance callbacks run inside `poll`. Assigned partitions are resumed
first, and their start is given with the assignment, never by a seek (librdkafka #5113, #2190).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from operator import methodcaller
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    murmur2,
)
from confluent_kafka import TopicPartition as Tp

from rollcall.consumers.log.epochs import UNKNOWN, Epochs
from rollcall.consumers.log.protocols import (
    READ_ANEW,
    Commit,
    Held,
    Listener,
    OpenTransaction,
    Record,
    TopicPartition,
)
from rollcall.producers.admin import Admin, PartitionBounds
from rollcall.producers.client_errors import checked_client, quiet
from rollcall.producers.error_codes import ErrorReaction, reaction_to
from rollcall.producers.kafka_publisher import KafkaPublisher
from rollcall.schemas.errors import (
    JournalGone,
    MembershipLost,
    Refused,
    TopicsDiffer,
    Unavailable,
    Unfit,
)
from rollcall.schemas.headers import UNREADABLE, Headers

COMMON = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "socket.nagle.disable": True,
    "queued.min.messages": 5000,
    "queued.max.messages.kbytes": 16384,
    # librdkafka counts a consumer's partitions together, and a full queue is checked again only
    # after this time, 1000 ms by default: with 4,000 rollouts live that took two seconds a turn.
    "fetch.queue.backoff.ms": 5,
}
GROUP = {
    "group.protocol": "consumer",
    "group.remote.assignor": "range",
    "max.poll.interval.ms": 60_000,
}
ALONE = {
    "group.protocol": "classic",
    # It pauses no partition, so a fetch that waits at the broker keeps no partition from being
    # read. Every worker has such readers, of topics with very few records.
    "fetch.wait.max.ms": 500,
}
LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
"""Error codes for a reader's position that the log no longer has."""
WATCH_S = 5.0
"""The interval at which readers check that their topics have the same id and partition count."""
CALL_S = 10.0
PLACE_S = 45.0
"""The time that a new assignment may wait for a broker; a minute without a
poll ends the membership."""
MEMBER_S = 10.0
"""The time that a member's epoch may stay old: some heartbeats. After that
the membership has ended."""
GOODBYE_S = 2.0
"""The time that a broker has to answer a leaving member before it counts as unavailable."""
GIVE_BACK_POLL_S = 0.02
CONTINUE = "To continue with the new one, restart with --accept-truncation"
LOOKING = "rollcall-reader"
"""The group id of readers without a group; no consumer subscribes with it."""
RETRY_S = 0.1
FEW = 4
GATHER_S = 0.0001
MOST_GATHER_S = 0.01
"""Polls that find more than a few records mean load; waiting a little for each of these records
makes fuller batches here, at the broker and downstream, which is faster."""

T = TypeVar("T")

log = structlog.get_logger()


class Batches:
    """Polls for the first record, then takes those that are there, under load after a short wait.

    A batched consume alone always waits for its timeout.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._last = 0
        self.left: set[TopicPartition] = set()
        """Partitions that leave; the rebalance callback adds to it."""

    def poll_batch(self, timeout_s: float, most: int) -> list[Message]:
        first = self._consumer.poll(timeout_s)
        if first is None:
            self._last = 0
            return []
        self.left.clear()
        gather_s = min(self._last * GATHER_S, MOST_GATHER_S) if self._last > FEW else 0
        batch = [first, *self._consumer.consume(most - 1, gather_s)]
        self._last = len(batch)
        # The client drops the messages of a partition that leaves from its own queues; if the
        # partition comes back at once, from its commit on, the first message would precede these.
        return batch[1:] if (first.topic(), first.partition()) in self.left else batch


class _Polling:
    """The common part of the two ways to read."""

    _consumer: Consumer
    _batches: Batches
    _fatal: list[KafkaError]

    def _messages(self, timeout_s: float, most: int) -> list[Message]:
        messages = self._batches.poll_batch(timeout_s, most)
        if self._fatal:
            msg = f"the consumer cannot continue: {self._fatal[0].str()}; restart this process"
            raise Unfit(msg)
        return messages

    def _error(self, message: Message) -> None:
        """Handle one error message; raises Unfit if the process must not go on."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return
        where = f"{message.topic()} {message.partition()}" if message.topic() else "as a member"
        if error.code() in LOST:
            msg = (
                f"reading {where} failed: {error.str()}. {self._held_now(message)}Records are gone "
                "that were there, by retention, an unclean election or a disk that was restored: "
                "to continue from what is left, restart with --accept-truncation"
            )
            raise JournalGone(msg)
        if reaction_to(error) in (ErrorReaction.FATAL, ErrorReaction.ABSENT):
            msg = f"reading {where} failed: {error.str()}"
            raise Unfit(msg)
        log.warning("poll_error", topic=where, error=error.str())

    def _held_now(self, message: Message) -> str:
        """Return a sentence with the partition's first and end offset, for the error message."""
        try:
            place = Tp(message.topic() or "", message.partition() or 0)
            bounds = self._consumer.get_watermark_offsets(place, timeout=CALL_S)
        except KafkaException as error:
            return f"(Its present offsets could not be read: {error.args[0].str()}.) "
        return f"It holds offsets {bounds[0]} to {bounds[1]} now. " if bounds else ""


ASK_HEADERS = methodcaller("headers")
"""Calls from C are checked for an error that the client sets beside a result. Once Python 3.11
has specialised a method call it no longer checks, and the error surfaces in the caller's caller."""


def _headers(message: Message) -> Headers | None:
    """Return the headers of a message; UNREADABLE if the client cannot decode them.

    The client raises for a name that is not UTF-8. A second call would return an object that
    crashes the process on access, so it is called once.
    """
    try:
        headers: Headers | None = ASK_HEADERS(message)
    except (SystemError, ValueError) as error:
        log.warning(
            "headers_unreadable",
            topic=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
            error=str(error.__cause__ or error),
        )
        return list(UNREADABLE)
    return headers


def _record(message: Message, tp: TopicPartition) -> Record:
    return Record(
        *tp,
        message.offset() or 0,
        message.key(),
        message.value(),
        message.timestamp()[1],
        partial(_headers, message),
        _known(message.leader_epoch()),
    )


def _known(epoch: int | None) -> int:
    return UNKNOWN if epoch is None else epoch


class KafkaSource(_Polling):
    """A member of a consumer group under KIP-848."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        admin: Admin,
        group: str,
        topics: Sequence[str],
        listener: Listener,
    ) -> None:
        self._admin = admin
        self._cuts = CutFinder(settings, admin)
        self._watch = TopicWatch(admin, CONTINUE)
        config = {**COMMON, **GROUP, **settings, "group.id": group, "on_commit": self._on_commit}
        self._fatal = []
        self._consumer = checked_client(Consumer, quiet(config, self._fatal), KafkaException)
        self._batches = Batches(self._consumer)
        self._listener = listener
        self._topics = list(topics)
        self._closing = self._broker_gone = False
        self._owned: set[TopicPartition] = set()
        self._fresh: set[TopicPartition] = set()
        """Owned, but without a record so far: a pause would be lost (librdkafka #2190)."""
        self._to_pause: set[TopicPartition] = set()
        self._epochs: dict[TopicPartition, Epochs] = {}
        """By owned partition, the leader epochs of the records read."""
        self._unplaced: dict[TopicPartition, float] = {}
        """Assigned, but the group gave no start; with the time until which that is tolerated."""
        self._ended: list[tuple[str, int, int]] = []
        self.refused = 0
        self._consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        records = []
        for message in self._messages(timeout_s, most):
            tp = message.topic() or "", message.partition() or 0
            error = message.error()
            if not message.topic():  # of the member itself: its membership may have ended
                self._error(message)
            if tp not in self._owned:  # revoked in this poll, or never placed
                continue
            self._fresh.discard(tp)
            if error is None:
                records.append(record := _record(message, tp))
                self._epochs[tp].saw(record.offset, record.leader_epoch)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.append((*tp, message.offset() or 0))
            else:
                self._error(message)
        if self._to_pause - self._fresh:
            self.pause(self._to_pause)
        self._check_unplaced()
        self._watch.check()
        return records

    def ended(self) -> list[tuple[str, int, int]]:
        ended, self._ended = self._ended, []
        return ended

    def commit(self, commits: Sequence[Commit]) -> None:
        try:
            self._consumer.commit(offsets=self._client_commits(commits), asynchronous=True)
        except KafkaException as error:
            self._refusal(error.args[0])

    def commit_now(self, commits: Sequence[Commit]) -> None:
        if self._broker_gone:  # a synchronous commit would wait until the session ends
            self.refused += 1
            log.warning("commit_abandoned", commits=len(commits))
            return
        try:
            committed = self._consumer.commit(
                offsets=self._client_commits(commits), asynchronous=False
            )
        except KafkaException as error:
            self._refusal(error.args[0])
        else:
            self._on_commit(None, committed or ())

    def _client_commits(self, commits: Sequence[Commit]) -> list[Tp]:
        """Return commits in the client's form, with the leader epoch of
        the last record below each."""
        converted = []
        for commit in commits:
            epochs = self._epochs.get((commit.topic, commit.partition))
            if epochs is not None:
                epochs.forget(commit.offset)
                commit = replace(commit, leader_epoch=epochs.before(commit.offset))
            converted.append(_client_commit(commit))
        return converted

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[Tp]) -> None:
        for failed in [error, *(tp.error for tp in partitions)]:
            if failed is not None:
                self._refusal(failed)

    def _refusal(self, error: KafkaError) -> None:
        """Count a refused commit; the next poll ends the process if none can succeed."""
        self.refused += 1
        verdict = reaction_to(error)
        if verdict is ErrorReaction.FATAL:
            self._fatal.append(error)
        elif verdict is not ErrorReaction.PASSING:
            log.warning("commit_refused", error=error.str())

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause; a partition without a record so far is paused after its first record."""
        ours = self._owned.intersection(partitions)
        self._to_pause = (self._to_pause | ours) & self._fresh
        self._consumer.pause([Tp(*tp) for tp in ours - self._fresh])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        partitions = list(partitions)
        self._to_pause.difference_update(partitions)
        self._consumer.resume([Tp(*tp) for tp in partitions if tp in self._owned])

    def close(self) -> None:
        """Leave the group. If the broker does not answer no last commit is made: the client
        would wait for it for the 45 s of a session. The next owner repeats that work."""
        self._closing, self._broker_gone = True, not self._answers()
        self._give_back()
        self._consumer.close()

    def _give_back(self) -> None:
        """Unsubscribe first: a client that gets a rebalance while it closes may deadlock while
        it holds the GIL (librdkafka #4884)."""
        self._consumer.unsubscribe()
        # The revocation is a callback of `poll`: the last commits are made there.
        until = time.monotonic() + GOODBYE_S
        while self._consumer.assignment() and time.monotonic() < until:
            self._consumer.poll(GIVE_BACK_POLL_S)

    def _answers(self) -> bool:
        """Return True if the broker answers. Called before leaving: a
        leaving client gets no answers."""
        try:
            self._consumer.list_topics(self._topics[0], timeout=GOODBYE_S)
        except KafkaException:
            return False
        return True

    def _on_assign(self, consumer: Consumer, partitions: list[Tp]) -> None:
        if self._closing:  # a leaving client gets no answers; they are revoked at once
            return
        # The client keeps pauses over rebalances; the listener decides anew about each partition.
        consumer.resume(partitions)
        until = time.monotonic() + PLACE_S
        try:
            held = _offsets_of(consumer, partitions, PLACE_S)
        except MembershipLost as moved:
            self._leave_unplaced(consumer, partitions, moved)
            return
        # The admin client is asked: the consumer does not know partitions added since it began.
        places = retried(lambda: self._places(held), until - time.monotonic())
        consumer.incremental_assign([self._placed(*place) for place in places])

    def _places(self, held: Sequence[Tp]) -> list[tuple[Held, Commit | None]]:
        """Return the brokers' state of newly assigned partitions; raises Unavailable."""
        stretches = self._admin.stretches([(tp.topic, tp.partition) for tp in held])
        ids = self._admin.topic_ids(sorted({tp.topic for tp in held}))
        self._watch.note(ids)
        commits = [_commit_of(tp) for tp in held if tp.offset != OFFSET_INVALID]
        cuts = self._cuts.find(commits, stretches)
        known = {(commit.topic, commit.partition): commit for commit in commits}
        places: list[tuple[Held, Commit | None]] = []
        for tp in held:
            named = tp.topic, tp.partition
            here, commit = stretches[named], known.get(named)
            place = Held(*named, None, "", here.start, here.end, None, ids[tp.topic])
            if commit is not None:
                place = replace(
                    place,
                    committed=commit.offset,
                    metadata=commit.metadata,
                    cut=cuts.get(named),
                )
            places.append((place, commit))
        return places

    def _placed(self, held: Held, commit: Commit | None) -> Tp:
        """Take over a partition; return where it is read from."""
        start = self._listener.assigned(held)
        tp = held.topic, held.partition
        self._owned.add(tp)
        self._fresh.add(tp)
        if commit is None or held.cut is not None:
            self._epochs[tp] = Epochs()
            return Tp(*tp, start)
        self._epochs[tp] = Epochs(commit.offset, commit.leader_epoch)
        if start != commit.offset or commit.leader_epoch == UNKNOWN:
            return Tp(*tp, start)
        # With the epoch the client itself detects a tail that is lost between this and the read.
        return Tp(*tp, start, leader_epoch=commit.leader_epoch)

    def _leave_unplaced(
        self, consumer: Consumer, partitions: list[Tp], moved: MembershipLost
    ) -> None:
        """Accept an assignment of a membership that has ended, without reading it.

        The client learns that the partitions are lost only after this callback has returned.
        """
        log.warning("assignment_not_placed", partitions=len(partitions), error=str(moved))
        until = time.monotonic() + PLACE_S
        self._unplaced |= {(tp.topic, tp.partition): until for tp in partitions}
        consumer.incremental_assign([Tp(tp.topic, tp.partition, OFFSET_END) for tp in partitions])

    def _check_unplaced(self) -> None:
        """Raise Unavailable if the group neither gives a start nor revokes the partition."""
        if self._unplaced and time.monotonic() > min(self._unplaced.values()):
            topic, number = min(self._unplaced)
            msg = (
                f"the group assigned {topic} {number}, but gave no commit for it within "
                f"{PLACE_S:g} s and did not revoke it; restart this worker"
            )
            raise Unavailable(msg)

    def _on_revoke(self, consumer: Consumer, partitions: list[Tp]) -> None:
        self._listener.revoked(self._ours(partitions))
        self._leave(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[Tp]) -> None:
        self._listener.lost(self._ours(partitions))
        self._leave(consumer, partitions)

    def _ours(self, partitions: Iterable[Tp]) -> list[TopicPartition]:
        """Return those that the listener knows; partitions assigned while
        leaving are not among them."""
        named = ((tp.topic, tp.partition) for tp in partitions)
        return [tp for tp in named if tp in self._owned]

    def _leave(self, consumer: Consumer, partitions: list[Tp]) -> None:
        leaving = {(tp.topic, tp.partition) for tp in partitions}
        self._owned -= leaving
        self._fresh -= leaving
        self._to_pause -= leaving
        for tp in leaving:
            self._unplaced.pop(tp, None)
            self._epochs.pop(tp, None)
        self._batches.left |= leaving
        consumer.resume(partitions)
        consumer.incremental_unassign(partitions)


def _client_commit(commit: Commit) -> Tp:
    place = commit.topic, commit.partition, commit.offset, commit.metadata
    if commit.leader_epoch == UNKNOWN:
        return Tp(*place)
    return Tp(*place, commit.leader_epoch)


def _commit_of(tp: Tp) -> Commit:
    return Commit(tp.topic, tp.partition, tp.offset, tp.metadata or "", _known(tp.leader_epoch))


def retried(call: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Repeat a call while the broker is unavailable, or the membership changes, until the timeout.

    Raises Unavailable, MembershipLost or Unfit.
    """
    began = time.monotonic()
    while True:
        try:
            return call()
        except (KafkaException, Unavailable) as error:
            _check_patience(error, time.monotonic() - began, timeout_s)
        time.sleep(RETRY_S)


def _check_patience(error: Exception, waited_s: float, timeout_s: float) -> None:
    """Raise the exception for an error that is not to be waited for any longer."""
    if isinstance(error, Unavailable):
        if waited_s > timeout_s:
            raise error
        return
    reason = error.args[0]
    verdict = reaction_to(reason)
    if verdict is ErrorReaction.FATAL:
        msg = f"the broker refuses: {reason.str()}"
        raise Unfit(msg) from error
    if verdict is ErrorReaction.PASSING and waited_s > min(MEMBER_S, timeout_s):
        msg = f"the group has refused this member for {waited_s:.0f} s: {reason.str()}"
        raise MembershipLost(msg) from error
    if waited_s > timeout_s:
        msg = f"the broker has not answered for {timeout_s:g} s: {reason.str()}"
        raise Unavailable(msg) from error


def _offsets_of(looker: Consumer, partitions: list[Tp], timeout_s: float) -> list[Tp]:
    """Return a group's commits; an error on one partition is an error, not a missing commit.

    Raises Unavailable, MembershipLost or Unfit.
    """

    def ask() -> list[Tp]:
        committed: list[Tp] = looker.committed(partitions, timeout=CALL_S)
        for tp in committed:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return committed

    return retried(ask, timeout_s)


class TopicWatch:
    """Detects that a topic is recreated under its name while it is read, or has more partitions.

    The client would go on at its position in the new topic, among other records. The admin client
    is used: a consumer's own request would wait behind its fetch, which the broker holds.
    """

    def __init__(self, admin: Admin, remedy: str) -> None:
        self._admin = admin
        self._remedy = remedy
        self._ids: dict[str, str] = {}
        self._asked: Mapping[str, Future[Any]] = {}
        self._due = time.monotonic() + WATCH_S

    def note(self, ids: Mapping[str, str]) -> None:
        """Set the ids of topics from now on."""
        self._ids.update(ids)

    def check(self) -> dict[str, int]:
        """Return partition counts that have been answered since; does not wait.

        Raises JournalGone if a topic has another id by now.
        """
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            answered = {t: f.result() for t, f in asked.items() if f.exception() is None}
            for topic, description in answered.items():
                self._compare(topic, str(description.topic_id))
            return {topic: len(each.partitions) for topic, each in answered.items()}
        if not self._asked and self._ids and time.monotonic() > self._due:
            self._due = time.monotonic() + WATCH_S
            self._asked = self._admin.ask_topic_ids(sorted(self._ids))
        return {}

    def _compare(self, topic: str, topic_id: str) -> None:
        if topic_id != self._ids[topic]:
            msg = f"{topic} was deleted and made anew while it was read. {self._remedy}"
            raise JournalGone(msg)


class CutFinder:
    """Finds the offsets at which logs diverge from commits.

    Records are read only if another leader was elected since, or if a log is too short.
    """

    def __init__(self, settings: Mapping[str, Any], admin: Admin) -> None:
        self._settings = settings
        self._admin = admin

    def find(
        self, commits: Sequence[Commit], stretches: Mapping[TopicPartition, PartitionBounds]
    ) -> dict[TopicPartition, int]:
        """Return the divergence by partition, only where records below the
        commit are lost or replaced."""
        doubted = [c for c in commits if _is_doubted(c, stretches[c.topic, c.partition])]
        if not doubted:
            return {}
        with _uncommitted_reader(self._settings) as consumer:
            ends = self._ends(consumer, doubted, stretches)
        return {
            tp: ends[tp]
            for commit in doubted
            if ends[tp := (commit.topic, commit.partition)] < commit.offset
        }

    def _ends(
        self,
        consumer: Consumer,
        commits: Sequence[Commit],
        stretches: Mapping[TopicPartition, PartitionBounds],
    ) -> dict[TopicPartition, int]:
        """Return the end of the records that each commit's leader, or one before it, wrote.

        The binary search covers all partitions at once: a read takes as long for one as for all.
        """
        leaders = {(c.topic, c.partition): c.leader_epoch for c in commits}
        ends = {
            (c.topic, c.partition): min(c.offset, stretches[c.topic, c.partition].end)
            for c in commits
        }
        asked = {
            tp: end - 1
            for tp, end in ends.items()
            if leaders[tp] != UNKNOWN and stretches[tp].start < end
        }
        spans = {
            tp: (stretches[tp].start, asked[tp])
            for tp, message in _firsts_from(consumer, asked).items()
            if _epoch_of(message) > leaders[tp]
        }
        while left := {tp: (low + high) // 2 for tp, (low, high) in spans.items() if low < high}:
            for tp, message in _firsts_from(consumer, left).items():
                low, high = spans[tp]
                above = _epoch_of(message) > leaders[tp]
                spans[tp] = (low, left[tp]) if above else (left[tp] + 1, high)
        return ends | {tp: low for tp, (low, _) in spans.items()}


def _epoch_of(message: Message | None) -> int:
    return UNKNOWN if message is None else _known(message.leader_epoch())


def _firsts_from(
    consumer: Consumer, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Message | None]:
    """Return the first record from an offset on by partition, None if there is none.

    Raises Unavailable.
    """
    first_messages: dict[TopicPartition, Message | None] = {}
    if not offsets:
        return first_messages
    consumer.assign([Tp(*tp, offset) for tp, offset in offsets.items()])
    until = time.monotonic() + CALL_S
    while len(first_messages) < len(offsets):
        if time.monotonic() > until:
            topic, number = min(offsets.keys() - first_messages.keys())
            msg = f"{topic} {number} cannot be read at {offsets[topic, number]}"
            raise Unavailable(msg)
        for message in consumer.consume(len(offsets), RETRY_S):
            tp, error = (message.topic() or "", message.partition() or 0), message.error()
            if error is None:
                first_messages.setdefault(tp, message)
            elif error.code() == KafkaError._PARTITION_EOF:
                first_messages.setdefault(tp, None)
    return first_messages


@contextmanager
def _uncommitted_reader(settings: Mapping[str, Any]) -> Iterator[Consumer]:
    """Open a consumer that also gets records of open and aborted transactions."""
    config = {**COMMON, **settings, "group.protocol": "classic", "group.id": LOOKING}
    uncommitted = quiet({**config, "isolation.level": "read_uncommitted"})
    consumer = checked_client(Consumer, uncommitted, KafkaException)
    try:
        yield consumer
    finally:
        consumer.close()


def _is_doubted(commit: Commit, here: PartitionBounds) -> bool:
    """Return True if a commit may count records that are gone."""
    elected = UNKNOWN not in (commit.leader_epoch, here.epoch) and commit.leader_epoch < here.epoch
    return commit.offset > here.end or elected


class KafkaReader(_Polling):
    """Reads every partition of some topics, without group and commits."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        watch: TopicWatch,
        bounds: Mapping[TopicPartition, tuple[int, int]],
        starts: Mapping[TopicPartition, int],
        *,
        from_end: bool = False,
    ) -> None:
        self._watch = watch
        config = {**COMMON, **ALONE, **settings, "group.id": LOOKING}
        self._fatal = []
        self._consumer = checked_client(Consumer, quiet(config, self._fatal), KafkaException)
        self._batches = Batches(self._consumer)
        self._waiting: dict[TopicPartition, int] = {}
        self._partitions = Counter(topic for topic, _ in bounds)
        assigned = []
        for (topic, number), (low, high) in bounds.items():
            start = starts.get((topic, number), high if from_end else low)
            if start < low:
                msg = f"{topic} {number} begins at {low}; offset {start} is past retention"
                raise Unfit(msg)
            if start > high:
                msg = f"{topic} {number} ends at {high}; offset {start} is not there any more"
                raise Unfit(msg)
            if start < high:
                self._waiting[topic, number] = high
            assigned.append(Tp(topic, number, start))
        self._consumer.assign(assigned)

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        records = []
        for topic, count in self._watch.check().items():
            if not self._waiting:
                self._read_added(topic, count)
        for message in self._messages(timeout_s, most):
            tp = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is None:
                records.append(_record(message, tp))
                if records[-1].offset + 1 >= self._waiting.get(tp, -1):
                    self._waiting.pop(tp, None)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._waiting.pop(tp, None)
            else:
                self._error(message)
        return records

    def _read_added(self, topic: str, count: int) -> None:
        """Also read partitions that were added since, from their beginning."""
        known = self._partitions[topic]
        if count > known:
            added = [Tp(topic, n, OFFSET_BEGINNING) for n in range(known, count)]
            self._consumer.incremental_assign(added)
            self._partitions[topic] = count

    def caught_up(self) -> bool:
        return not self._waiting

    def close(self) -> None:
        self._consumer.close()


class KafkaLog:
    """Clients of one cluster; settings are passed to librdkafka unchanged."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._counts: dict[str, int] = {}
        self._lookers: dict[str, Consumer] = {}

    def source(self, group: str, topics: Sequence[str], listener: Listener) -> KafkaSource:
        self._check(topics)
        return KafkaSource(self._settings, self._admin, group, topics, listener)

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> KafkaReader:
        partitions = [(topic, n) for topic in topics for n in range(self.partitions(topic))]
        watch = TopicWatch(self._admin, READ_ANEW)
        # Before the bounds, so that these are of this incarnation or a later one.
        watch.note(self._admin.topic_ids(topics))
        bounds = self._admin.bounds(partitions)
        return KafkaReader(self._settings, watch, bounds, starts or {}, from_end=from_end)

    def publisher(self, *, bulk: bool = False) -> KafkaPublisher:
        return KafkaPublisher(self._settings, bulk=bulk)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the commits of a group on a topic, by partition; partitions
        without one are left out."""
        return {number: held.offset for number, held in self.commits(group, topic).items()}

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        """Like `committed`, with metadata and epoch.

        It uses a consumer that never joins: librdkafka 2.16 crashes in the admin client's
        ListConsumerGroupOffsets when the coordinator answers with an error. Raises Unavailable.
        """
        partitions = [Tp(topic, number) for number in range(self.partitions(topic))]
        looker = self._looker(group)
        try:
            # The first request about a group that is not known yet is answered NOT_COORDINATOR.
            committed = _offsets_of(looker, partitions, CALL_S)
        except (Unfit, Unavailable) as error:
            msg = f"the offsets of group {group!r} could not be read: {error}"
            raise Unavailable(msg) from error
        return {tp.partition: _commit_of(tp) for tp in committed if tp.offset >= 0}

    def cuts(self, commits: Sequence[Commit]) -> dict[TopicPartition, int]:
        """Return the offsets at which logs diverge from commits; raises Unavailable."""
        stretches = self._admin.stretches([(c.topic, c.partition) for c in commits])
        return CutFinder(self._settings, self._admin).find(commits, stretches)

    def open_transactions(self, topics: Sequence[str]) -> list[OpenTransaction]:
        """Return the places where readers are held back; the client cannot tell by which producer.

        The high watermarks are read first: records that are stable later were not held back then.
        """
        partitions = [(topic, n) for topic in topics for n in range(self.partitions(topic))]
        ends = self._admin.high_watermarks(partitions)
        stretches = self._admin.stretches(partitions)
        held = [tp for tp in partitions if stretches[tp].end < ends[tp]]
        if not held:
            return []
        with _uncommitted_reader(self._settings) as consumer:
            firsts = _firsts_from(consumer, {tp: stretches[tp].end for tp in held})
        return [
            OpenTransaction(*tp, stretches[tp].end, ends[tp], first.timestamp()[1] if first else 0)
            for tp, first in firsts.items()
        ]

    def commit_for(self, group: str, commits: Sequence[Commit]) -> None:
        """Commit for a group without members; raises Refused if it has some."""
        looker = self._looker(group)
        try:
            looker.commit(offsets=[_client_commit(c) for c in commits], asynchronous=False)
        except KafkaException as error:
            msg = f"the broker takes no commits for group {group!r}: {error.args[0].str()}"
            raise Refused(msg) from error

    def topic_names(self) -> list[str]:
        """Return all topics; raises Unavailable."""
        self._counts = self._admin.partitions()
        return sorted(self._counts)

    def group_names(self) -> list[str]:
        """Return all consumer groups that the brokers know; raises Unavailable."""
        return self._admin.groups()

    def offsets_for_times(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """Return by partition the first offset not older than a time; the end if there is none."""
        times = [Tp(topic, n, time_ms) for topic in topics for n in range(self.partitions(topic))]
        looker = self._looker(LOOKING)
        offsets = retried(lambda: looker.offsets_for_times(times, timeout=CALL_S)) if times else []
        beyond = [(tp.topic, tp.partition) for tp in offsets if tp.offset < 0]
        ends = {tp: end for tp, (_, end) in self._admin.bounds(beyond).items()}
        return ends | {(tp.topic, tp.partition): tp.offset for tp in offsets if tp.offset >= 0}

    def _looker(self, group: str) -> Consumer:
        """Return a consumer that never joins the group whose commits it reads."""
        if group not in self._lookers:
            config = {**self._settings, "group.id": group, "enable.auto.commit": False}
            self._lookers[group] = checked_client(Consumer, quiet(config), KafkaException)
        return self._lookers[group]

    def close(self) -> None:
        """Close the consumers that were opened for look-ups."""
        for looker in self._lookers.values():
            looker.close()
        self._lookers.clear()

    def partitions(self, topic: str) -> int:
        self._check([topic])
        return self._counts[topic]

    def partition_of(self, topic: str, key: bytes) -> int:
        """Return the partition that `partitioner=murmur2_random` of our producers gives a key."""
        number: int = murmur2(key, self.partitions(topic))
        return number

    def topic_id(self, topic: str) -> str:
        self._check([topic])
        return self._admin.topic_ids([topic])[topic]

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        every = self._admin.bounds([(topic, n) for n in range(self.partitions(topic))])
        return {number: bounds for (_, number), bounds in every.items()}

    def ends(self, topic: str) -> list[Commit]:
        here = self._admin.stretches([(topic, n) for n in range(self.partitions(topic))])
        return [Commit(*tp, at.end, "", at.epoch) for tp, at in sorted(here.items())]

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self._settings)

    def _check(self, topics: Sequence[str]) -> None:
        """Raise TopicsDiffer for missing topics: under KIP-848
        subscribing to one raises no error."""
        if any(topic not in self._counts for topic in topics):
            self._counts = self._admin.partitions()
        missing = [topic for topic in topics if topic not in self._counts]
        if missing:
            msg = f"topics {', '.join(missing)} are missing; run `rollcall topics apply`"
            raise TopicsDiffer(msg)
