"""Time limits for sessions of a worker and for the work in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Limits, in seconds."""

    lease_s: float = 3600.0
    """A session without a step for this time ends: by default the longest time of a rollout, after
    which no more steps can come."""
    slow_s: float = 1.0
    """A step on a shared thread that takes longer has the other sessions moved away."""
    close_s: float = 60.0
    """Time limit for closing the sessions of a partition, or those that lapsed."""
    grace_s: float = 10.0
    """Time for a cancelled step, or a close, of a async session until it is left alone."""
