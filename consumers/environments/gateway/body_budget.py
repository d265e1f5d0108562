"""Limits on bytes of request bodies: how many a gateway holds, and the rate of each session.

Bytes are counted from the first that arrives, so that bodies that never end cost no more than
others, and no session can use all of the memory. A session above its rate is read from more slowly,
since receiving bytes takes time of the event loop that all sessions share.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollcall.inference.dialects.dialect import Declined


@dataclass
class ByteRate:
    """A rate limit, with bursts of `burst_bytes` after a pause."""

    bytes_per_s: int
    burst_bytes: int
    due: float = 0.0

    async def wait_after(self, count: int) -> None:
        """Count bytes that have arrived, and wait until more may arrive."""
        now = time.monotonic()
        self.due = max(self.due, now) + count / self.bytes_per_s
        wait_s = self.due - now - self.burst_bytes / self.bytes_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


@dataclass
class HeldBytes:
    """The bytes of one body so far."""

    budget: "BodyBudget"
    session: str
    count: int = 0

    def add(self, count: int) -> None:
        """Count more bytes. Raises Declined (429) if the session or the worker has no room."""
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
    """The limits, in bytes, for the bodies of one gateway."""

    most: int
    most_of_session: int
    retry_after_s: int = 1
    held: int = 0
    by_session: Counter[str] = field(default_factory=Counter)
    bytes_per_s: int = 16 * 1024 * 1024
    """The rate of one session; all connections without a key share one."""
    burst_bytes: int = 8 * 1024 * 1024
    rates: dict[str, ByteRate] = field(default_factory=dict)

    def rate(self, session: str) -> ByteRate:
        """Return the rate limit of a session; it is kept until `forget`."""
        if session not in self.rates:
            self.rates[session] = ByteRate(self.bytes_per_s, self.burst_bytes)
        return self.rates[session]

    def forget(self, session: str) -> None:
        """Drop the state of a session that has ended."""
        self.rates.pop(session, None)

    @contextmanager
    def body(self, session: str) -> Iterator[HeldBytes]:
        """Count one body, until its request has been read or abandoned."""
        held = HeldBytes(self, session)
        try:
            yield held
        finally:
            self.held -= held.count
            self.by_session[session] -= held.count
            if not self.by_session[session]:
                del self.by_session[session]
