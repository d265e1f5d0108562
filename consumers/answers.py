"""How groups that carry out commands answer: into the journal partition that the command names."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from consumers.clock import Clock, LogClock, steady_wall
from consumers.log.protocols import Log, Record
from consumers.send_later import SendLater
from producers.publisher import Publisher
from schemas.codec import Codec
from schemas.errors import NoSuchPartition, ObjectLost, TooLarge, Unavailable, WireError, WorkFailed
from schemas.headers import hot_headers
from schemas.message_code import maker
from schemas.messages import (
    CallFailed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
)
from schemas.topics import Topics

Command = ModelCall | EnvironmentStep
Answer = ModelAnswered | EnvironmentStepped | CallFailed
make_event = maker(Event)
UNANSWERED = ("close", "abort")
"""Kinds of commands that nobody waits for."""


class Answers:
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
        """What deadlines of commands are held against; never ahead of the log.

        The ack of an answer says what time it is there. Until there is one a command's own append
        time does: it may have waited for long, so what is late may be done, and never the reverse.
        """
        self._acked_ms = 0
        self._unsent: SendLater[tuple[Command, Answer, Record]] = SendLater("answering_waits")
        self._partitions = log.partitions(self.topic)

    def check(self, command: Command) -> None:
        """Raises NoSuchPartition for a command whose answer would have nowhere to go."""
        if command.answer_partition >= self._partitions:
            self.log.topic_names()  # or else a count from before the topic grew is told again
            self._partitions = self.log.partitions(self.topic)
        if not 0 <= command.answer_partition < self._partitions:
            raise NoSuchPartition(self.topic, command.answer_partition, self._partitions)

    def now_ms(self, taken: Sequence[tuple[Record, object]] = ()) -> int:
        """The time by the log; `taken` is what was just read."""
        if taken and not self._acked_ms:
            self.clock.saw(max(record.timestamp_ms for record, _ in taken))
        return int(self.clock() * 1000)

    def tick(self) -> None:
        """Give what could not be given before, and learn the time from the newest ack.

        To be called soon after acks were counted.
        """
        for unsent in self._unsent.drain():
            self.give(*unsent)
        acked_ms = self.publisher.acked_ms
        if acked_ms != self._acked_ms:
            self._acked_ms = acked_ms
            self.clock.saw(acked_ms)

    def give(self, command: Command, body: Answer, cause: Record) -> None:
        """Write one answer and close its record; one that cannot be is answered as failed.

        Where it cannot be encoded now it is given later, and its record stays open.
        """
        try:
            self._write(command, body, cause)
        except Unavailable as error:
            self._unsent.add((command, body, cause), error)
            return
        except TooLarge as error:
            self._fail(command, cause, error)
        except WireError as error:  # a text of foreign code that is not Unicode, for one
            self._write(command, CallFailed("raised", str(error), False), cause)
        cause.closed = True

    def lost(self, record: Record, error: WireError) -> None:
        """Answer a command whose object is lost: it is known from its light record alone.

        It may be tried again: its sender still has what was lost.
        """
        command = error.light if isinstance(error, ObjectLost) else None
        if not isinstance(command, ModelCall | EnvironmentStep) or command.kind in UNANSWERED:
            return
        with suppress(NoSuchPartition):
            self.check(command)
            self.give(command, CallFailed("object_lost", str(error), True), record)

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
        """Answer as failed where the topic would not have the answer itself."""
        self._write(command, CallFailed(error.code, str(error), error.retriable), cause)


def event_of(command: Command, body: Answer, written_by: str) -> Event:
    """The entry of the journal that answers a command: it echoes its place, id and digest."""
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
    """The answer to a command that is taken too late, None when it is not."""
    return too_late(command, now_ms) if now_ms > command.not_after_ms else None


def too_late(command: Command, now_ms: int) -> CallFailed:
    """The answer to a command that may not be begun any more."""
    late_s = (now_ms - command.not_after_ms) / 1000
    return CallFailed("expired", f"taken {late_s:.1f} s after its deadline", True)
