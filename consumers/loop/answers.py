"""Answers of groups that execute commands, written to the journal partition of the command; items
that cannot be sent while registry or object store is unreachable wait.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import structlog

from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.clock import Clock, LogClock, steady_wall
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    FailureCode,
    NoSuchPartition,
    ObjectLost,
    TooLarge,
    Unavailable,
    WireError,
    WorkFailed,
)
from rollcall.schemas.headers import hot_headers
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
)
from rollcall.schemas.topics import Topics

Command = ModelCall | EnvironmentStep
Answer = ModelAnswered | EnvironmentStepped | CallFailed
make_event = maker(Event)
UNANSWERED = ("close", "abort")
"""Kinds of commands that get no answer."""


class AnswerWriter:
    """Writes answers; each is an output of the record that held its command."""

    def __init__(
        self,
        name: str,
        log: Log,
        codec: Codec,
        topics: Topics,
        publisher: Publisher,
        wall: Clock | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.codec = codec
        self.topics = topics
        self.topic = topics.events
        self.publisher = publisher
        self.wall = wall or steady_wall()
        self.clock = LogClock(self.wall, slew=0)
        """The clock for deadlines of commands; it is never ahead of the log.

        It is set by the append times of acked answers. Before the first ack, the append time of a
        command is used: it may be old, so a late command may run, but none is refused early.
        """
        self._acked_ms = 0
        self._unsent: SendLater[tuple[Command, Answer, Record]] = SendLater("answering_waits")
        self._partitions = log.partitions(self.topic)

    def check(self, command: Command) -> None:
        """Raise NoSuchPartition for a command whose answer partition does not exist."""
        if command.answer_partition >= self._partitions:
            self.log.topic_names()  # drops the cached count from before the topic grew
            self._partitions = self.log.partitions(self.topic)
        if not 0 <= command.answer_partition < self._partitions:
            raise NoSuchPartition(self.topic, command.answer_partition, self._partitions)

    def now_ms(self, taken: Sequence[tuple[Record, object]] = ()) -> int:
        """Return the time by the log; `taken` are the records that were just read."""
        if taken and not self._acked_ms:
            self.clock.saw(max(record.timestamp_ms for record, _ in taken))
        return int(self.clock() * 1000)

    def tick(self) -> None:
        """Send the answers that wait, and set the clock by the newest ack.

        Call it soon after acks were counted.
        """
        for unsent in self._unsent.drain():
            self.give(*unsent)
        acked_ms = self.publisher.acked_ms
        if acked_ms != self._acked_ms:
            self._acked_ms = acked_ms
            self.clock.saw(acked_ms)

    def give(self, command: Command, body: Answer, cause: Record) -> None:
        """Write one answer and close its record; if it cannot be written, answer with a failure.

        If it cannot be encoded now, it is written later, and its record stays open.
        """
        try:
            self._write(command, body, cause)
        except Unavailable as error:
            self._unsent.add((command, body, cause), error)
            return
        except TooLarge as error:
            self._fail(command, cause, error)
        except WireError as error:  # for example text of user code that is not Unicode
            self._write(command, CallFailed(FailureCode.RAISED, str(error), False), cause)
        cause.closed = True

    def lost(self, record: Record, error: WireError) -> None:
        """Answer a command whose object is lost, from the fields of its light record.

        The failure is retriable: the sender still has the content.
        """
        command = error.light if isinstance(error, ObjectLost) else None
        if not isinstance(command, ModelCall | EnvironmentStep) or command.kind in UNANSWERED:
            return
        with suppress(NoSuchPartition):
            self.check(command)
            self.give(command, CallFailed(FailureCode.OBJECT_LOST, str(error), True), record)

    def _write(self, command: Command, body: Answer, cause: Record) -> None:
        event = event_of(command, body, self.name)
        self.publisher.send(
            self.topic,
            command.rollout_id,
            self.codec.encode(self.topic, event),
            partition=command.answer_partition,
            headers=hot_headers(type(body).__name__, command.command_id),
            cause=cause,
            refused=None if isinstance(body, CallFailed) else partial(self._fail, command, cause),
        )

    def _fail(self, command: Command, cause: Record, error: WorkFailed) -> None:
        """Answer with a failure if the topic refused the answer."""
        self._write(command, CallFailed(error.code, str(error), error.retriable), cause)


def event_of(command: Command, body: Answer, written_by: str) -> Event:
    """Return the journal entry that answers a command, with its position, id and digest."""
    return make_event(
        command.rollout_id,
        command.attempt,
        command.position,
        command.tries,
        command.command_id,
        command.body_digest,
        written_by,
        body,
    )


def expired(command: Command, now_ms: int) -> CallFailed | None:
    """Return the failure for a command that is past its deadline, else None."""
    return too_late(command, now_ms) if now_ms > command.not_after_ms else None


def too_late(command: Command, now_ms: int) -> CallFailed:
    """Return the failure for a command that is too late to begin."""
    late_s = (now_ms - command.not_after_ms) / 1000
    return CallFailed(FailureCode.EXPIRED, f"taken {late_s:.1f} s after its deadline", True)


T = TypeVar("T")

log = structlog.get_logger()


class SendLater(Generic[T]):
    """Items that wait to be sent again, in no order; any thread may add some."""

    def __init__(self, warning: str) -> None:
        self._warning = warning
        """The event that is logged once, when the first item begins to wait."""
        self._waiting: deque[T] = deque()
        self._warned = False

    def add(self, item: T, error: Unavailable, **fields: object) -> None:
        """Add an item; `error` is the reason of the wait."""
        if not self._warned:
            self._warned = True
            log.warning(self._warning, error=str(error), **fields)
        self._waiting.append(item)

    def drain(self) -> Iterator[T]:
        """Yield each item that waits now, to be sent again; items added meanwhile stay."""
        for _ in range(len(self._waiting)):
            yield self._waiting.popleft()
        if not self._waiting:
            self._warned = False
