"""A record that an operator sent again, as `rollcall dlq replay` leaves it."""

from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.dead_letter_records import ResendOrder, content_digest
from rollcall.schemas.headers import REPLAYED_FROM


def send_again(
    log: MemoryLog, letters: str, topic: str, key: bytes, value: bytes, partition: int = 0
) -> None:
    """Write the order that a letter may be taken as new, then what the letter holds."""
    at = 0, log.bounds(letters)[0][1]
    order = ResendOrder(at, content_digest(topic, partition, key, value), "ann")
    log.append(letters, None, None, 0, order.headers())
    headers = [(REPLAYED_FROM, f"{letters} {at[0]}@{at[1]}".encode())]
    log.append(topic, key, value, partition, headers)
