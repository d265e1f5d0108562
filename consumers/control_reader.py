"""Reading `control`: every process reads all of it; there is no group, and nothing is committed."""

from collections import deque
from collections.abc import Callable, Iterator

import structlog

from consumers.log.protocols import Log, Record
from schemas.codec import Codec
from schemas.errors import Unavailable, WireError
from schemas.messages import Control
from schemas.topics import Topics

log = structlog.get_logger()


class ControlReader:
    """The words on `control`, in order; those that wait for the registry hold the others up."""

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        *,
        from_end: bool = False,
        unreadable: Callable[[Record, WireError], None] | None = None,
    ) -> None:
        self._codec = codec
        self._reader = log_.reader([topics.control], from_end=from_end)
        self._held: deque[Record] = deque()
        self._unreadable = unreadable
        """Told about what is no word; without it such records are passed over."""
        self._said = False

    def poll(self, timeout_s: float = 0.0) -> Iterator[tuple[Record, Control]]:
        """The words that have come."""
        self._held += self._reader.poll(timeout_s)
        while self._held:
            record = self._held[0]
            try:
                word = self._codec.decode(record.value, Control)
            except Unavailable as error:
                if not self._said:
                    log.warning("registry_away", topic=record.topic, error=str(error))
                self._said = True
                return
            except WireError as error:
                self._held.popleft()
                if self._unreadable is not None:
                    self._unreadable(record, error)
                continue
            self._held.popleft()
            self._said = False
            yield record, word

    def caught_up(self) -> bool:
        return self._reader.caught_up() and not self._held

    def close(self) -> None:
        self._reader.close()
