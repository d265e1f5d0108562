"""Limits on the loop's time that a session uses for parsing HTTP, before its bodies are read.

A body in chunks of one byte, or one that unpacks to a thousand times its size, costs far more than
its number of bytes. So the time is measured: a session whose parsing takes long is paused until
parsing is a small share of the time.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

SHARE = 1 / 10
"""Share of the time for parsing the input of one session."""
AT_ONCE_S = 0.05
"""Time that parsing may take at once after a pause."""
LONG_S = 0.001
LONG_SHARE = 1 / 100
"""Share for pieces that take longer than LONG_S, which other sessions notice."""
AGAIN = 3
"""Further cost of parsing on in bytes that had arrived before, in multiples of its time."""
MOST_S = 5.0
"""The longest pause."""
MOST_OWED_S = 10.0
"""The longest pause for one request; a connection that needs more is closed."""
PIECE_BYTES = 64 * 1024
"""Bytes read at once from a connection of a session."""
HEAD_BYTES = 8 * 1024
"""The same before it has shown a key: the head of a request, and little to parse."""


class Resting(Protocol):
    """A connection of the session."""

    def rest(self, seconds: float) -> None:
        """Read nothing for `seconds`."""

    def end_soon(self) -> None:
        """Take no more, since the session is over."""


@dataclass
class ParsingShare:
    """The parsing cost of all connections of one session; those without a key share one.

    Of those without a key only the one that has just caused cost is paused: a session's next
    connection may be among the others.
    """

    due: float = 0.0
    connections: set[Resting] = field(default_factory=set)

    def rest_s(self) -> float:
        """Return how long nothing more is to be read."""
        return max(0.0, self.due - AT_ONCE_S / SHARE - time.monotonic())

    def spent(self, seconds: float, *, again: bool) -> float:
        """Count processor seconds of one piece; pause all connections if needed; return the cost.

        The cost is the pause due, in seconds. `again` means bytes that had arrived before: aiohttp
        parses thousands of one-byte chunks so.
        """
        now = time.monotonic()
        long = AGAIN * seconds if again else max(0.0, seconds - LONG_S)
        owed_s = seconds / SHARE + long / LONG_SHARE
        self.due = min(max(self.due, now) + owed_s, now + MOST_S)
        if rest_s := self.rest_s():
            for connection in tuple(self.connections):
                connection.rest(rest_s)
        return owed_s
