"""Saying a word on `control`: cancel, pause, resume or drain."""

from producers.publisher import Publisher
from schemas.codec import Codec
from schemas.errors import DeliveryFailed
from schemas.headers import full_headers
from schemas.messages import Control
from schemas.topics import Topics

CONTROL_FLUSH_S = 30.0


def send_control(
    out: Publisher, codec: Codec, topics: Topics, word: Control, key: str | None = None
) -> None:
    """Write one word and wait for its ack; raises DeliveryFailed."""
    about = key or word.kind
    headers = full_headers("Control", f"{word.kind}/{about}", "rollcall", about, about)
    out.send(topics.control, key, codec.encode(topics.control, word), headers=headers)
    if out.flush(CONTROL_FLUSH_S):
        msg = f"the {word.kind} was not acked within {CONTROL_FLUSH_S:g} s; it may still arrive"
        raise DeliveryFailed(msg)
