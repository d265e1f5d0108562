"""The present quotas, and the user limit that a rollout waits for, according to the log.

A worker's share of a quota depends on its partitions. So a rollout may wait although its user has
room on another worker; this is then stated.
"""

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import closing

from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import POLL_S, uninterrupted
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.schemas.messages import Quota


def read_quotas(history: History, default: Quota) -> QuotaTable:
    """Return the table of quotas as agents workers read it; raises TopicsDiffer, Unavailable."""
    table = QuotaTable(history.log, history.codec, history.topics, default)
    with closing(table):
        while not table.known:
            with uninterrupted():
                table.follow(POLL_S)
    return table


UNKNOWN = "started, first command not sent: its user's quota, or its worker is gone"
SHARE = "started, first command not sent: its worker's share of the quota, or its worker is gone"

Call = tuple[Rollout, OutstandingEffect]


class UserLimits:
    """The limits of users, and their present use."""

    def __init__(self, table: QuotaTable) -> None:
        self.table = table
        self._running: Counter[str] = Counter()
        self._ahead: dict[tuple[Rollout, int], int] = {}
        """The place in the queue of a call that its user's rate holds, counted from 1."""

    def note(self, running: Iterable[Rollout], unsent: Iterable[Call]) -> None:
        """Note the rollouts whose first command was sent, and the calls that were not sent."""
        self._running.update(rollout.request.user for rollout in running)
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
                self._running[user] += 1
            queued[user] += 1
            self._ahead[rollout, waits.position] = queued[user]

    def of_start(self, user: str) -> str:
        """Return why a first command was not sent."""
        return self._used_up(user) or (SHARE if self.table.of(user).running else UNKNOWN)

    def _used_up(self, user: str) -> str:
        """Return the quota that a user has used up; empty if there is none."""
        most, running = self.table.of(user).running, self._running[user]
        return f"quota: {running:,} of {most:,} running" if 0 < most <= running else ""

    def of_call(self, rollout: Rollout, waits: OutstandingEffect) -> str:
        """Return why a call was not sent; empty if no rate of its user holds it."""
        ahead = self._ahead.get((rollout, waits.position))
        if ahead is None:
            return ""
        rate = self.table.of(rollout.request.user).calls_per_s
        return f"rate {rate:g}/s, next in {math.ceil(ahead / rate):,} s"
