"""What a session may cost the loop before its bodies are bodies: the parsing of HTTP itself.

A body in chunks of one byte, or one that unpacks to a thousand times its size, costs far more than
its bytes do. So what it costs is measured: a session whose parsing takes long is read from again
when it has rested for so long that this is a small share of the time.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

SHARE = 1 / 10
"""Of the time, for parsing what one session sends."""
AT_ONCE_S = 0.05
"""What it may take at once after a rest."""
LONG_S = 0.001
LONG_SHARE = 1 / 100
"""For pieces that take longer, which others feel."""
AGAIN = 3
"""What it costs to go on with bytes that have come, beside parsing them, in such times."""
MOST_S = 5.0
"""A rest."""
MOST_OWED_S = 10.0
"""Of rest for one request; who needs more is ended."""
PIECE_BYTES = 64 * 1024
"""Read from a connection of a session at once."""
HEAD_BYTES = 8 * 1024
"""The same from one that has shown no key yet: the head of a request, and little to parse."""


class Resting(Protocol):
    """A connection of the session."""

    def rest(self, seconds: float) -> None:
        """Read nothing for so long."""

    def end_soon(self) -> None:
        """Take no more, for the session is over."""


@dataclass
class ParsingShare:
    """Of all connections of one session; those without a key are one.

    Of those without a key only the one that has just cost something rests: a session's next
    connection may be among the others.
    """

    due: float = 0.0
    connections: set[Resting] = field(default_factory=set)

    def rest_s(self) -> float:
        """How long nothing more is to be read."""
        return max(0.0, self.due - AT_ONCE_S / SHARE - time.monotonic())

    def spent(self, seconds: float, *, again: bool) -> float:
        """Count seconds of processor that one piece took; have all connections rest if need be.

        `again`: it had come before. aiohttp parses chunks of a byte so, thousands in one go.
        Return how long a rest it costs.
        """
        now = time.monotonic()
        long = AGAIN * seconds if again else max(0.0, seconds - LONG_S)
        owed_s = seconds / SHARE + long / LONG_SHARE
        self.due = min(max(self.due, now) + owed_s, now + MOST_S)
        if rest_s := self.rest_s():
            for connection in tuple(self.connections):
                connection.rest(rest_s)
        return owed_s
