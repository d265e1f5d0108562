"""Saying on `quotas` what a user may take."""

from producers.publisher import Publisher, flush_all
from schemas.bounds import check_quota
from schemas.codec import Codec
from schemas.headers import full_headers
from schemas.messages import Quota
from schemas.topics import Topics

QUOTA_FLUSH_S = 30.0


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
    flush_all(out, QUOTA_FLUSH_S, "quotas", "it may still arrive")
