"""Limit of the servers of a policy that adopt a version at the same time, by records on `control`.

A server that wants to adopt writes a request, and waits until it has read its own record and fewer
than `at_once` earlier requests are unfinished. All readers of the log compute the same result:
places are given in log order, and a place that is not given back is free again one lease after it
was given, by the log's time; so a server that dies during an adoption delays others no longer. A
waiting server continues with its weights; one that serves nothing yet does not wait.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.schemas.messages import Control

LEASE_S = 60.0
"""Time for one adoption; reading a version of a billion parameters takes less."""
ADOPTING, ADOPTED = "adopting", "adopted"

log = structlog.get_logger()


@dataclass(eq=False)
class AdoptionTurns:
    """The servers of one policy that have a place; times are milliseconds of the log."""

    at_once: int
    lease_ms: int
    _given: dict[str, int] = field(default_factory=dict)
    """The time when each got its place."""
    _waiting: dict[str, None] = field(default_factory=dict)
    """Servers that wait, in log order."""
    _now_ms: int = 0

    def apply_order(self, kind: str, server: str, at_ms: int) -> None:
        """Fold one record. Repeats count once, and an end without a request does nothing."""
        self.pass_to(at_ms)
        if kind == ADOPTING and server not in self._given:
            self._waiting.setdefault(server)
        elif kind == ADOPTED:
            self._given.pop(server, None)
            self._waiting.pop(server, None)
        self._give(self._now_ms)

    def pass_to(self, now_ms: int) -> None:
        """Advance the log's time, and free places whose lease has ended."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._given:
            # In a fixed order, so that all readers pass a place on at the same time.
            server = min(self._given, key=lambda each: (self._given[each], each))
            ends_ms = self._given[server] + self.lease_ms
            if ends_ms > self._now_ms:
                return
            del self._given[server]
            self._give(ends_ms)

    def has_place(self, server: str) -> bool:
        return server in self._given

    def is_known(self, server: str) -> bool:
        """Return True if it has a place or waits for one."""
        return server in self._given or server in self._waiting

    def _give(self, at_ms: int) -> None:
        while self._waiting and len(self._given) < self.at_once:
            server = next(iter(self._waiting))
            del self._waiting[server]
            self._given[server] = at_ms


@dataclass(eq=False)
class AdoptionTurn:
    """One server's part in it: `request_place` before it adopts a version, `end` after."""

    policy_id: str
    server: str
    turns: AdoptionTurns
    control: ControlReader
    say: Callable[[Control], None]
    """Writes a record, without waiting for it."""
    clock: Clock
    """The log's time, in seconds."""
    _said_at: float | None = None

    def request_place(self) -> bool:
        """Return True if this server may adopt now; request a place if needed. Call it repeatedly.

        While the log is unreachable no server gets a place, and all serve what they have.
        """
        self._follow()
        if self._said_at is not None and self.turns.has_place(self.server):
            return True
        now = self.clock()
        lost = self._said_at is not None and now - self._said_at > self.turns.lease_ms / 1000
        if self._said_at is None or (lost and not self.turns.is_known(self.server)):
            self._said_at = now
            self.say(self._order(ADOPTING))
            log.info("adoption_requested", policy_id=self.policy_id)
        return False

    def end(self) -> None:
        """Give the place back, if this server, or an earlier one of this name, requested one."""
        if self._said_at is not None or self.turns.is_known(self.server):
            self._said_at = None
            self.say(self._order(ADOPTED))

    def _follow(self) -> None:
        for record, order in self.control.poll():
            self._take(record, order)
        if self.control.caught_up():
            self.turns.pass_to(int(self.clock() * 1000))

    def _take(self, record: Record, order: Control) -> None:
        if order.kind in (ADOPTING, ADOPTED) and order.group_id == self.policy_id:
            self.turns.apply_order(order.kind, order.worker, record.timestamp_ms)

    def _order(self, kind: str) -> Control:
        return Control(kind, group_id=self.policy_id, worker=self.server)
