"""How groups that carry out commands answer: into the journal partition that the command names."""

from collections import OrderedDict
from typing import Generic, TypeVar

from consumers.log import Publisher, Record
from schemas.codec import Codec
from schemas.errors import TooLarge
from schemas.headers import hot_headers
from schemas.messages import (
    CallFailed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    ModelCall,
    maker,
)
from schemas.topics import Topics

Command = ModelCall | EnvironmentStep
Answer = ModelAnswered | EnvironmentStepped | CallFailed
B = TypeVar("B")
make_event = maker(Event)
KEPT = 20_000


class Kept(Generic[B]):
    """The answers last given, by command id, so that a repeat is answered and not done again."""

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self._kept: OrderedDict[bytes, B] = OrderedDict()

    def get(self, command_id: bytes) -> B | None:
        return self._kept.get(command_id)

    def keep(self, command_id: bytes, body: B) -> None:
        self._kept[command_id] = body
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)


class Answers:
    """Writes answers; each is an output of the record that held its command."""

    def __init__(self, name: str, codec: Codec, topics: Topics, publisher: Publisher) -> None:
        self.name = name
        self.codec = codec
        self.topic = topics.events
        self.publisher = publisher

    def give(
        self,
        command: Command,
        body: Answer,
        cause: Record,
    ) -> None:
        """Write one answer and close its record; one that is too large is answered as failed."""
        try:
            self._write(command, body, cause)
        except TooLarge as error:
            self._write(command, CallFailed(error.code, str(error), error.retriable), cause)
        cause.closed = True

    def _write(
        self,
        command: Command,
        body: Answer,
        cause: Record,
    ) -> None:
        event = event_of(command, body, self.name)
        self.publisher.send(
            self.topic,
            command.rollout_id,
            self.codec.encode(self.topic, event),
            partition=command.answer_partition,
            headers=hot_headers(type(body).__name__, command.command_id),
            cause=cause,
        )


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
    if now_ms <= command.not_after_ms:
        return None
    late_s = (now_ms - command.not_after_ms) / 1000
    return CallFailed("expired", f"taken {late_s:.1f} s after its deadline", True)
