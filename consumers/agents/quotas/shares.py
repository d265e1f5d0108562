"""The share of a user's quota that one worker may use: that of the journals it holds.

A limit is divided among the partitions so that all parts sum to it, and a worker pools the parts of
its own. A worker that holds any partition may run at least one rollout, since those waiting there
would otherwise wait for ever: all workers together thus keep a limit that is no smaller than their
number. A partition that moves takes its part along at once; rollouts that run elsewhere under that
part go on.
"""


class QuotaShare:
    """The partitions that count towards this worker's shares."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        """Partitions whose journals are folded: before that their running rollouts are unknown."""
        self.partitions = 1
        """The number of partitions in all."""

    def part_of(self, limit: int) -> int:
        """Return this worker's share of a whole number; at least one."""
        count = max([self.partitions, *(number + 1 for number in self.held)])
        # Rounded so that the parts of all partitions sum to the limit.
        parts = ((n + 1) * limit // count - n * limit // count for n in self.held)
        return max(1, sum(parts))

    def rate_of(self, limit: float) -> float:
        """Return this worker's share of a rate."""
        return limit * len(self.held) / max(self.partitions, len(self.held))
