"""Which limit of its user a rollout waits for, and when that clears: as far as the log tells.

How much of a quota a worker may give out depends on which partitions it has. So a rollout may wait
although its user has room elsewhere; then that is said.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from consumers.agents.begun_this_hour import HOUR_MS
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.rollout import Rollout
from consumers.quota_table import QuotaTable

UNKNOWN = "started, first command not sent: its user's quota, or its worker is gone"
SHARE = "started, first command not sent: its worker's share of the quota, or its worker is gone"

Call = tuple[Rollout, Outstanding]


class UserLimits:
    """What users may take, and what they have taken by now."""

    def __init__(self, table: QuotaTable, now_ms: int, ended: Mapping[str, int]) -> None:
        """`ended`: rollouts that ended in this hour, by user."""
        self.table = table
        self.hour_ms = now_ms // HOUR_MS * HOUR_MS
        self._running: Counter[str] = Counter()
        self._begun: Counter[str] = Counter(ended)
        self._ahead: dict[tuple[Rollout, int], int] = {}
        """Of a call that its user's rate holds: how many come before it, and itself."""

    def note(self, running: Iterable[Rollout], unsent: Iterable[Call]) -> None:
        """Open rollouts whose first command was sent, and the calls that were not sent."""
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
                    continue  # it has not begun: no rate holds it
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
        """Why a first command was not sent."""
        quota = self.table.of(user)
        return self._used_up(user) or (SHARE if quota.running or quota.per_hour else UNKNOWN)

    def _used_up(self, user: str) -> str:
        """The quota that a user has used up; empty where none is."""
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
        """Why a call was not sent; empty where no rate of its user holds it."""
        ahead = self._ahead.get((rollout, waits.position))
        if ahead is None:
            return ""
        rate = self.table.of(rollout.request.user).calls_per_s
        return f"rate {rate:g}/s, next in {math.ceil(ahead / rate):,} s"
