"""What part of a user's quota one worker may give out: that of the journals it holds.

A limit is dealt to the partitions so that all parts together are the limit, and a worker pools the
parts of its own. Whoever holds any may let one rollout run, for what waits there would wait for
ever: so the workers together keep a limit that is no smaller than their number. A partition that
moves takes its part along at once; rollouts that run elsewhere on the strength of it go on.
"""


class Shares:
    """The parts of the journals that are held."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        """Partitions whose journals are folded: before, nobody knows what runs there."""
        self.partitions = 1
        """How many there are in all."""

    def part_of(self, limit: int) -> int:
        """How many of a whole number are this worker's; at least one."""
        count = max([self.partitions, *(number + 1 for number in self.held)])
        parts = ((n + 1) * limit // count - n * limit // count for n in self.held)
        return max(1, sum(parts))

    def rate_of(self, limit: float) -> float:
        """How much of a rate is this worker's."""
        return limit * len(self.held) / max(self.partitions, len(self.held))
