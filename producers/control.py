"""What operators say: a word on `control` (cancel, pause, resume, drain), a user's quota."""

from producers.publisher import Publisher, flush_all
from schemas.bounds import check_quota
from schemas.codec import Codec
from schemas.errors import DeliveryFailed
from schemas.headers import full_headers
from schemas.messages import Control, Quota
from schemas.topics import Topics

FLUSH_S = 30.0


def write_control(
    out: Publisher,
    codec: Codec,
    topics: Topics,
    word: Control,
    key: str | None = None,
    source: str = "rollcall",
) -> None:
    """Write one word, without waiting for its ack."""
    about = key or word.kind
    headers = full_headers("Control", f"{word.kind}/{about}", source, about, about)
    out.send(topics.control, key, codec.encode(topics.control, word), headers=headers)


def send_control(
    out: Publisher, codec: Codec, topics: Topics, word: Control, key: str | None = None
) -> None:
    """Write one word and wait for its ack; raises DeliveryFailed."""
    write_control(out, codec, topics, word, key)
    if out.flush(FLUSH_S):
        msg = f"the {word.kind} was not acked within {FLUSH_S:g} s; it may still arrive"
        raise DeliveryFailed(msg)


def send_quota(
    out: Publisher, codec: Codec, topics: Topics, user: str, quota: Quota | None
) -> None:
    """Set a user's quota, or take it back with None, and wait for the ack.

    Raises Refused for what can be no quota, DeliveryFailed.
    """
    check_quota(quota or Quota(user))
    value = None if quota is None else codec.encode(topics.quotas, quota)
    headers = full_headers("Quota", user, "rollcall", user, user)
    out.send(topics.quotas, user, value, headers=headers)
    flush_all(out, FLUSH_S, "quotas", "it may still arrive")
