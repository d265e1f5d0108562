"""Bytes of request bodies: how many a gateway holds, and how fast it takes them from a session.

They are counted from the first byte that comes, so that bodies that never end cost no more than
others, and no session takes the memory of all. A session that sends faster than it may is read
from more slowly: taking bytes is work for the loop that all sessions share.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inference.dialects.dialect import Declined


@dataclass
class ByteRate:
    """So many bytes a second, and so many at once after a rest."""

    a_second: int
    at_once: int
    due: float = 0.0

    async def taken(self, count: int) -> None:
        """Count bytes that have come, and wait until more may."""
        now = time.monotonic()
        self.due = max(self.due, now) + count / self.a_second
        wait_s = self.due - now - self.at_once / self.a_second
        if wait_s > 0:
            await asyncio.sleep(wait_s)


@dataclass
class HeldBytes:
    """The bytes of one body so far."""

    budget: "BodyBudget"
    session: str
    count: int = 0

    def add(self, count: int) -> None:
        """Take so many more; raise Declined (429) where the session or the worker has no room."""
        budget = self.budget
        mine, all_ = budget.by_session[self.session] + count, budget.held + count
        if mine > budget.most_of_session or all_ > budget.most:
            whose = "this session's" if mine > budget.most_of_session else "the gateway's"
            msg = f"{whose} requests hold too many bytes at once; send them one after the other"
            raise Declined(429, "rate_limit_exceeded", msg, retry_after_s=budget.retry_after_s)
        budget.by_session[self.session] = mine
        budget.held = all_
        self.count += count


@dataclass
class BodyBudget:
    """What the bodies of one gateway may hold, in bytes."""

    most: int
    most_of_session: int
    retry_after_s: int = 1
    held: int = 0
    by_session: Counter[str] = field(default_factory=Counter)
    bytes_a_second: int = 16 * 1024 * 1024
    """Of one session; those without a key are one."""
    bytes_at_once: int = 8 * 1024 * 1024
    rates: dict[str, ByteRate] = field(default_factory=dict)

    def rate(self, session: str) -> ByteRate:
        """How fast a session may send; it is remembered until the session is forgotten."""
        if session not in self.rates:
            self.rates[session] = ByteRate(self.bytes_a_second, self.bytes_at_once)
        return self.rates[session]

    def forget(self, session: str) -> None:
        """Of a session that is over nothing is remembered."""
        self.rates.pop(session, None)

    @contextmanager
    def body(self, session: str) -> Iterator[HeldBytes]:
        """Count one body, and forget it when its request has been read or has gone."""
        held = HeldBytes(self, session)
        try:
            yield held
        finally:
            self.held -= held.count
            self.by_session[session] -= held.count
            if not self.by_session[session]:
                del self.by_session[session]
