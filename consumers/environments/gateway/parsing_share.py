"""A limit on the share of the event loop's time that parsing the HTTP of one session takes.

A body in chunks of one byte, or one that unpacks to a thousand times its size, costs far more than
its number of bytes. So the time is measured, and a session whose parsing takes long is paused until
parsing is a small share of the time again.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

SHARE = 1 / 10
"""Share of the time for parsing the input of one session."""
BURST_S = 0.05
"""Time that parsing may take at once after a pause."""
LONG_S = 0.001
LONG_SHARE = 1 / 100
"""Share for pieces that take longer than LONG_S, which other sessions notice."""
AGAIN = 3
"""Further cost of parsing bytes that had arrived before, in multiples of its time."""
MOST_S = 5.0
"""The longest pause."""
MOST_OWED_S = 10.0
"""The longest pause for one request; a connection that needs more is closed."""
PIECE_BYTES = 64 * 1024
"""Bytes read at once from a connection of a session."""
HEAD_BYTES = 8 * 1024
"""The same before it has sent a key: the head of a request, and little to parse."""


class Pausable(Protocol):
    """A connection of the session."""

    def pause(self, seconds: float) -> None:
        """Read nothing for `seconds`."""

    def end_soon(self) -> None:
        """Close the connection soon, since the session is over."""


@dataclass
class ParsingShare:
    """The parsing cost of all connections of one session; those without a key share one.

    Of those without a key only the one that has just caused cost is paused: a session's next
    connection may be among the others.
    """

    due: float = 0.0
    connections: set[Pausable] = field(default_factory=set)

    def pause_s(self) -> float:
        """Return for how many seconds nothing more is to be read."""
        return max(0.0, self.due - BURST_S / SHARE - time.monotonic())

    def charge(self, seconds: float, *, again: bool) -> float:
        """Count processor seconds of one piece; pause all connections if needed; return the cost.

        The cost is the pause due, in seconds. `again` means bytes that had arrived before: aiohttp
        parses thousands of one-byte chunks that way.
        """
        now = time.monotonic()
        long = AGAIN * seconds if again else max(0.0, seconds - LONG_S)
        owed_s = seconds / SHARE + long / LONG_SHARE
        self.due = min(max(self.due, now) + owed_s, now + MOST_S)
        if pause_s := self.pause_s():
            for connection in tuple(self.connections):
                connection.pause(pause_s)
        return owed_s
