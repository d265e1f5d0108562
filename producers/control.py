"""Commands of operators: on `control` (cancel, pause, resume, drain), and users' quotas."""

from rollcall.producers.publisher import Publisher, flush_all
from rollcall.schemas.bounds import check_quota
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import DeliveryFailed
from rollcall.schemas.headers import full_headers
from rollcall.schemas.messages import Control, Quota
from rollcall.schemas.topics import Topics

FLUSH_S = 30.0


def control_key(word: Control) -> str:
    """Return the key of a command: in the compacted topic, a later one of the key replaces it."""
    if word.kind == "cancel" and word.rollout_id:
        return f"cancel/rollout/{word.rollout_id}"
    if word.kind == "cancel":
        return f"cancel/group/{word.group_id}"
    if word.kind in ("pause", "resume"):
        return f"pause/run/{word.run_id}" if word.run_id else "pause"
    if word.kind == "drain":
        return f"drain/{word.worker}"
    if word.kind in ("adopting", "adopted"):
        return f"adoption/{word.group_id}/{word.worker}"
    return f"{word.kind}/{word.rollout_id}/{word.group_id}/{word.worker}"


def write_control(
    out: Publisher, codec: Codec, topics: Topics, word: Control, source: str = "rollcall"
) -> None:
    """Write one command, without waiting for its ack."""
    key = control_key(word)
    about = word.rollout_id or word.group_id or word.worker or word.run_id or word.kind
    headers = full_headers("Control", f"{word.kind}/{about}", source, about, about)
    out.send(topics.control, key, codec.encode(topics.control, word), headers=headers)


def retire_control(out: Publisher, topics: Topics, key: bytes) -> None:
    """Revoke the command under a key of `control`, without waiting for the ack."""
    about = key.decode(errors="replace")
    headers = full_headers("Control", f"retired/{about}", "rollcall", about, about)
    out.send(topics.control, key, None, headers=headers)


def send_control(out: Publisher, codec: Codec, topics: Topics, word: Control) -> None:
    """Write one command and wait for its ack. Raises DeliveryFailed."""
    write_control(out, codec, topics, word)
    if out.flush(FLUSH_S):
        msg = f"the {word.kind} was not acked within {FLUSH_S:g} s; it may still arrive"
        raise DeliveryFailed(msg)


def send_quota(
    out: Publisher, codec: Codec, topics: Topics, user: str, quota: Quota | None
) -> None:
    """Set a user's quota, or revoke it with None, and wait for the ack.

    Raises Refused for an invalid quota, and DeliveryFailed.
    """
    check_quota(quota or Quota(user))
    value = None if quota is None else codec.encode(topics.quotas, quota)
    headers = full_headers("Quota", user, "rollcall", user, user)
    out.send(topics.quotas, user, value, headers=headers)
    flush_all(out, FLUSH_S, "quotas", "it may still arrive")
