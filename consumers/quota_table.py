"""The quotas of users, as `quotas` tells them: every process that needs them reads all of it.

The last record of a user counts, one without a value takes it back, and so does one that makes no
sense: after a compaction nobody could tell what stood before it. Whoever has no record has the
default quota, that of the settings.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from consumers.decode_in_order import DecodeInOrder
from consumers.log.protocols import Log, Reader, Record
from schemas.bounds import check_quota
from schemas.codec import Codec
from schemas.errors import Refused, TopicsDiffer, Unavailable, WireError
from schemas.messages import Quota
from schemas.topics import Topics

LOOK_AGAIN_S = 30.0
"""Between two looks for a topic that is not there."""
UNLIMITED = Quota("")

log = structlog.get_logger()


class QuotaTable:
    """What each user may take, now."""

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        default: Quota = UNLIMITED,
        *,
        clock: Callable[[], float] = time.monotonic,
        unreadable: Callable[[Record, WireError], None] = lambda record, error: None,
    ) -> None:
        """`unreadable` is told about what is no quota. Raises Unavailable."""
        self.default = default
        self.records: dict[str, Quota] = {}
        """By user, without the default."""
        self.since_ms: dict[str, int] = {}
        """When each of them was written."""
        self.missing = False
        """Whether the topic is not there, so that nobody can have a record."""
        self.known = False
        """Whether all that was there at the beginning has been taken."""
        self.paces = default.calls_per_s > 0
        """Whether anybody's calls have a rate."""
        self._log = log_
        self._topic = topics.quotas
        self._clock = clock
        self._unreadable = unreadable
        self._held = DecodeInOrder(codec, Quota)
        self._paced: set[str] = set()
        self._due = 0.0
        self._reader = self._open()
        self.known = self.missing

    def _open(self) -> Reader | None:
        """A reader of all of it; None where the topic is not there, which is said once."""
        try:
            return self._log.reader([self._topic])
        except TopicsDiffer:
            if not self.missing:
                remedy = "`rollcall topics apply` makes it; until then the settings' quota holds"
                log.warning("quotas_missing", topic=self._topic, remedy=remedy)
            self.missing = True
            self._due = self._clock() + LOOK_AGAIN_S
            return None

    def of(self, user: str) -> Quota:
        """What holds for a user."""
        return self.records.get(user, self.default)

    def may_have_been_paced(self, user: str) -> bool:
        """Whether the calls of a user may have had a rate at some time."""
        return self.default.calls_per_s > 0 or user in self._paced

    def follow(self, timeout_s: float = 0.0) -> set[str]:
        """Take what has come; the users whose quota may be another one now."""
        if self._reader is None:
            self._look_again()
        if self._reader is None:
            return set()
        self._held.add(self._reader.poll(timeout_s))
        users = {self._take(record, found) for record, found in self._held.ready()}
        if users:
            paced = any(quota.calls_per_s for quota in self.records.values())
            self.paces = paced or self.default.calls_per_s > 0
        self.known = self.known or (self._reader.caught_up() and not self._held)
        return users

    def _look_again(self) -> None:
        if self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_AGAIN_S
        try:
            self._reader = self._open()
        except Unavailable as error:
            log.warning("log_away", topic=self._topic, error=str(error))
            return
        self.missing = self._reader is None

    def _take(self, record: Record, found: Quota | WireError) -> str:
        user = (record.key or b"").decode(errors="replace")
        quota = self.records.pop(user, None)
        self.since_ms[user] = record.timestamp_ms
        if record.value is None:
            self._paced.add(user)  # by what it takes back, for all one knows
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
        if self._reader is not None:
            self._reader.close()


def limits_of(quota: Quota) -> str:
    """A quota in words."""
    words = [
        f"{quota.running:,} rollouts running at once" if quota.running else "",
        f"{quota.per_hour:,} begun in an hour" if quota.per_hour else "",
        f"{quota.calls_per_s:g} model calls a second" if quota.calls_per_s else "",
    ]
    return ", ".join(filter(None, words)) or "as much as there is"


def _quota_of(user: str, found: Quota | WireError) -> Quota:
    """What a record under this key says; raises WireError where that is no quota of the user."""
    if isinstance(found, WireError):
        raise found
    try:
        check_quota(replace(found, user=user))
    except Refused as error:
        raise WireError(str(error)) from error
    if found.user != user:
        msg = f"the quota of {found.user!r} lies under the key {user!r}"
        raise WireError(msg)
    return found
