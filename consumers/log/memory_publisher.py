"""The in-memory log's producer: records are appended at once, and acked at the next poll."""

from typing import TYPE_CHECKING

from rollcall.producers.publisher import Cause, Outgoing, Publisher
from rollcall.schemas.errors import DeliveryFailed, WorkFailed

if TYPE_CHECKING:
    from rollcall.consumers.log.memory_log import MemoryLog


class MemoryPublisher(Publisher):
    """Writes at once; acks are counted at the next poll, or withheld by `hold_acks`."""

    def __init__(self, log: "MemoryLog") -> None:
        self.log = log
        self.hold_acks = False
        self.acked_ms = 0
        self._unacked: list[tuple[Cause | None, int]] = []
        self._refused: list[tuple[WorkFailed, Outgoing]] = []

    def _put(self, outgoing: Outgoing) -> None:
        topic, key, value = outgoing.topic, outgoing.key, outgoing.value
        error = self.log.refusal(topic, value)
        if error is not None:
            self._refused.append((error, outgoing))
            return
        raw = key.encode() if isinstance(key, str) else key
        self.log.append(topic, raw, value, outgoing.partition, outgoing.headers)
        self._unacked.append((outgoing.cause, int(self.log.wall() * 1000)))

    def push(self) -> None:
        """Do nothing: records are not batched here."""

    def poll(self) -> None:
        if self.hold_acks:
            return
        for cause, append_ms in self._unacked:
            self.acked_ms = append_ms
            if cause is not None:
                cause.acked += 1
        self._unacked.clear()
        refused, self._refused = self._refused, []
        for error, outgoing in refused:
            if outgoing.refused is None:
                msg = f"a record was refused, and nothing can be written instead: {error}"
                raise DeliveryFailed(msg)
            outgoing.refused(error)
            if outgoing.cause is not None:
                outgoing.cause.acked += 1

    def flush(self, timeout_s: float) -> int:
        del timeout_s
        self.poll()
        if self.waiting():  # a replacement of a refused record
            self.poll()
        return self.waiting()

    def waiting(self) -> int:
        return len(self._unacked) + len(self._refused)
