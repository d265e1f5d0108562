"""The quotas of users, from the topic `quotas`, which every process that needs them reads in full.

The last record of a user counts. A record without a value revokes the quota, and so does an invalid
one, since after a compaction the record before it would be unknown. A user without a record has the
default quota, from the settings.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.decode_in_order import DecodeInOrder
from rollcall.schemas.bounds import check_quota
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import Quota
from rollcall.schemas.topics import Topics

UNLIMITED = Quota("")

log = structlog.get_logger()


class QuotaTable:
    """The present limits of each user."""

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        default: Quota = UNLIMITED,
        *,
        unreadable: Callable[[Record, WireError], None] = lambda record, error: None,
    ) -> None:
        """`unreadable` is called for invalid records. Raises TopicsDiffer, Unavailable."""
        self.default = default
        self.records: dict[str, Quota] = {}
        """Quotas by user, without the default."""
        self.since_ms: dict[str, int] = {}
        """The time of each user's last record."""
        self.known = False
        """True once all records that existed at the start are read."""
        self.paces = default.calls_per_s > 0
        """True if any user's calls have a rate limit."""
        self._unreadable = unreadable
        self._held = DecodeInOrder(codec, Quota)
        self._paced: set[str] = set()
        self._reader = log_.reader([topics.quotas])

    def of(self, user: str) -> Quota:
        """Return the quota of a user."""
        return self.records.get(user, self.default)

    def may_have_been_paced(self, user: str) -> bool:
        """Return True if the calls of a user may have had a rate limit at some time."""
        return self.default.calls_per_s > 0 or user in self._paced

    def follow(self, timeout_s: float = 0.0) -> set[str]:
        """Read new records; return the users whose quota may have changed."""
        self._held.add(self._reader.poll(timeout_s))
        users = {self._take(record, found) for record, found in self._held.ready()}
        if users:
            paced = any(quota.calls_per_s for quota in self.records.values())
            self.paces = paced or self.default.calls_per_s > 0
        self.known = self.known or (self._reader.caught_up() and not self._held)
        return users

    def _take(self, record: Record, found: Quota | WireError) -> str:
        user = (record.key or b"").decode(errors="replace")
        quota = self.records.pop(user, None)
        self.since_ms[user] = record.timestamp_ms
        if record.value is None:
            self._paced.add(user)  # the revoked quota may have had a rate
            return user
        try:
            quota = self.records[user] = _quota_of(user, found)
        except WireError as error:
            log.warning("quota_refused", user=user, error=str(error))
            self._unreadable(record, error)
        if quota is not None and quota.calls_per_s:
            self._paced.add(user)
        return user

    def close(self) -> None:
        self._reader.close()


def limits_of(quota: Quota) -> str:
    """Return a quota in words."""
    words = [
        f"{quota.running:,} rollouts running at once" if quota.running else "",
        f"{quota.calls_per_s:g} model calls a second" if quota.calls_per_s else "",
    ]
    return ", ".join(filter(None, words)) or "as much as there is"


def _quota_of(user: str, quota: Quota | WireError) -> Quota:
    """Return the quota in a record of this key. Raises WireError if it is not a valid one."""
    if isinstance(quota, WireError):
        raise quota
    try:
        check_quota(replace(quota, user=user))
    except Refused as error:
        raise WireError(str(error)) from error
    if quota.user != user:
        msg = f"the quota of {quota.user!r} lies under the key {user!r}"
        raise WireError(msg)
    return quota
