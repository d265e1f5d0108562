"""The rollout states of a run, as stored in a checkpoint."""

from dataclasses import dataclass

from rollcall.schemas.messages import Consumed


@dataclass(frozen=True, slots=True)
class Book:
    """The published draws and ended members; held members are left out: they are read again."""

    next_draw: int = 0
    """The next draw: every draw below was published completely, and its records acknowledged."""
    low: int = 0
    """The low watermark: every member of every draw below has ended."""
    ended: bytes = b""
    """One bit per member, from the first member of draw `low`; the lowest bit comes first."""
    left: tuple[int, ...] = ()
    """Draws whose group has left the buffer before all their members had ended."""
    unreadable: int = 0
    """The number of unreadable records that may have been results of running rollouts."""
    asked: tuple[Consumed, ...] = ()
    """Offsets at or above which the requests of draws from `next_draw` on lie."""
    won: tuple[int, ...] = ()
    """Draws of `left` whose group was complete early, so that other members are redundant."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Unfinished draws with fewer members than `group_size`, and their size."""
    begun: tuple[tuple[int, int], ...] = ()
    """Unfinished draws, and the newest version at their publication, where it is known."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """Draw, member and number of continuations, of members that have not ended."""
