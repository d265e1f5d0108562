"""How long sessions of a worker, and what is done in them, may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """In seconds."""

    lease_s: float = 3600.0
    """A session that nobody steps for so long ends: as long as a rollout may take unless it says
    otherwise, and after that nobody can ask any more."""
    slow_s: float = 1.0
    """After so long in a step on a shared thread, nobody waits behind it any more."""
    close_s: float = 60.0
    """What closing the sessions of a partition, or those that lapsed, may take."""
    grace_s: float = 10.0
    """What a cancelled step, or a close, of one that waits may take until it is left alone."""
