"""The accounts of a run as a checkpoint holds them."""

from dataclasses import dataclass

from schemas.messages import Consumed


@dataclass(frozen=True, slots=True)
class Book:
    """What was published and has ended; what is held is read again and not in it."""

    next_draw: int = 0
    """Every draw below was published whole, and its records are acked."""
    low: int = 0
    """Every member of every draw below has ended."""
    ended: bytes = b""
    """One bit a member, from the first member of draw `low` on; the lowest bit comes first."""
    left: tuple[int, ...] = ()
    """Draws whose group has left the buffer before all their members had ended."""
    unreadable: int = 0
    """Records that may have been some of those in the air, for all that can be read of them."""
    asked: tuple[Consumed, ...] = ()
    """Requests of draws from `next_draw` on lie here or above."""
    won: tuple[int, ...] = ()
    """Those of `left` whose group was whole without the rest, which is redundant."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Draws that are unfinished and have fewer members than others, and how many."""
    begun: tuple[tuple[int, int], ...] = ()
    """Draws that are unfinished and the newest version when they were published, where told."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """Draw, member, and how often it was cancelled and gone on with, where it has not ended."""
