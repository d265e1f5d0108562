"""Bytes of request bodies that a gateway holds: bounded for each session and for the worker.

They are counted from the first byte that comes, so that bodies that never end cost no more than
others, and no session takes the memory of all.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inference.dialects.dialect import Declined


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
