"""Finds the user limit that a rollout waits for, and when it clears, according to the log.

A worker's share of a quota depends on its partitions. So a rollout may wait although its user has
room on another worker; this is then stated.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rollcall.consumers.agents.begun_this_hour import HOUR_MS
from rollcall.consumers.agents.fold.outstanding import Outstanding
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.quota_table import QuotaTable

UNKNOWN = "started, first command not sent: its user's quota, or its worker is gone"
SHARE = "started, first command not sent: its worker's share of the quota, or its worker is gone"

Call = tuple[Rollout, Outstanding]


class UserLimits:
    """The limits of users, and their present use."""

    def __init__(self, table: QuotaTable, now_ms: int, ended: Mapping[str, int]) -> None:
        """`ended`: rollouts that ended in this hour, by user."""
        self.table = table
        self.hour_ms = now_ms // HOUR_MS * HOUR_MS
        self._running: Counter[str] = Counter()
        self._begun: Counter[str] = Counter(ended)
        self._ahead: dict[tuple[Rollout, int], int] = {}
        """The place in the queue of a call that its user's rate holds, counted from 1."""

    def note(self, running: Iterable[Rollout], unsent: Iterable[Call]) -> None:
        """Note the rollouts whose first command was sent, and the calls that were not sent."""
        for rollout in running:
            self._note_begun(rollout)
        queued: Counter[str] = Counter()
        let_begin: set[Rollout] = set()
        for rollout, waits in sorted(unsent, key=lambda call: call[1].opened_ms):
            user = rollout.request.user
            if not self.table.of(user).calls_per_s:
                continue
            if rollout.at_first_command() and rollout not in let_begin:
                if self._used_up(user):
                    continue  # not begun, so no rate holds it
                let_begin.add(rollout)
                self._note_begun(rollout)
            queued[user] += 1
            self._ahead[rollout, waits.position] = queued[user]

    def _note_begun(self, rollout: Rollout) -> None:
        user = rollout.request.user
        self._running[user] += 1
        if not rollout.heard_ms or rollout.heard_ms >= self.hour_ms:
            self._begun[user] += 1

    def of_start(self, user: str) -> str:
        """Return why a first command was not sent."""
        quota = self.table.of(user)
        return self._used_up(user) or (SHARE if quota.running or quota.per_hour else UNKNOWN)

    def _used_up(self, user: str) -> str:
        """Return the quota that a user has used up; empty if there is none."""
        quota = self.table.of(user)
        running, begun = self._running[user], self._begun[user]
        if quota.running and running >= quota.running:
            return f"quota: {running:,} of {quota.running:,} running"
        if quota.per_hour and begun >= quota.per_hour:
            clears = datetime.fromtimestamp((self.hour_ms + HOUR_MS) / 1000, UTC)
            used = f"{begun:,} of {quota.per_hour:,} begun this hour"
            return f"quota: {used}, window clears {clears:%H:%M} UTC"
        return ""

    def of_call(self, rollout: Rollout, waits: Outstanding) -> str:
        """Return why a call was not sent; empty if no rate of its user holds it."""
        ahead = self._ahead.get((rollout, waits.position))
        if ahead is None:
            return ""
        rate = self.table.of(rollout.request.user).calls_per_s
        return f"rate {rate:g}/s, next in {math.ceil(ahead / rate):,} s"
