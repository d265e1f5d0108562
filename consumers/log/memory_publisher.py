"""The in-memory log's producer: what is sent is there at once, and acked when it says so."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from producers.publisher import Cause, check_size
from schemas.errors import DeliveryFailed, WorkFailed
from schemas.headers import Headers

if TYPE_CHECKING:
    from consumers.log.memory_log import MemoryLog


class MemoryPublisher:
    """Writes at once; acks are counted at the next poll, or withheld by `hold_acks`."""

    def __init__(self, log: "MemoryLog") -> None:
        self.log = log
        self.hold_acks = False
        self.acked_ms = 0
        self._unacked: list[tuple[Cause | None, int]] = []
        self._refused: list[
            tuple[WorkFailed, Cause | None, Callable[[WorkFailed], None] | None]
        ] = []

    def send(
        self,
        topic: str,
        key: str | bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        cause: Cause | None = None,
        refused: Callable[[WorkFailed], None] | None = None,
    ) -> None:
        check_size(topic, value)
        if cause is not None:
            cause.sent += 1
        error = self.log.refusal(topic, value)
        if error is not None:
            self._refused.append((error, cause, refused))
            return
        self.log.append(
            topic, key.encode() if isinstance(key, str) else key, value, partition, headers
        )
        self._unacked.append((cause, int(self.log.wall() * 1000)))

    def push(self) -> None:
        """Nothing is gathered here."""

    def poll(self) -> None:
        if self.hold_acks:
            return
        for cause, append_ms in self._unacked:
            self.acked_ms = append_ms
            if cause is not None:
                cause.acked += 1
        self._unacked.clear()
        refused, self._refused = self._refused, []
        for error, cause, tell in refused:
            if tell is None:
                msg = f"a record was refused, and nothing can be written instead: {error}"
                raise DeliveryFailed(msg)
            tell(error)
            if cause is not None:
                cause.acked += 1

    def flush(self, timeout_s: float) -> int:
        del timeout_s
        self.poll()
        if self.waiting():  # what was sent instead of something refused
            self.poll()
        return self.waiting()

    def waiting(self) -> int:
        return len(self._unacked) + len(self._refused)
