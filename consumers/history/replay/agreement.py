"""The agreement between two scorings of the same trajectories."""

from dataclasses import dataclass, field

TOLERANCE = 1e-9
LISTED = 20


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout that one scoring counts as a success, or as positive, and the other does not."""

    rollout_id: str
    attempt: int
    old: float
    new: float


@dataclass(slots=True)
class Agreement:
    """A fold of pairs of total rewards, the old scoring's first."""

    scoring_id: str
    """The id of the old scoring."""
    success_at: float = 1.0
    compared: int = 0
    """The number of trajectories that both scorings have a reward for."""
    agree: int = 0
    """The number of these whose rewards differ by at most 1e-9."""
    sum_of_differences: float = 0.0
    succeed_now: int = 0
    fail_now: int = 0
    signs_flipped: int = 0
    only_old: int = 0
    only_new: int = 0
    neither: int = 0
    flips: list[Flip] = field(default_factory=list)
    """The first trajectories whose success or sign differs between the scorings."""

    def take(self, rollout_id: str, attempt: int, old: float | None, new: float | None) -> None:
        """Note one trajectory; None means no reward."""
        if old is None or new is None:
            self.only_old += old is not None
            self.only_new += new is not None
            self.neither += old is None and new is None
            return
        self.compared += 1
        self.agree += abs(new - old) <= TOLERANCE
        self.sum_of_differences += new - old
        succeeded, succeeds = old >= self.success_at, new >= self.success_at
        self.succeed_now += succeeds and not succeeded
        self.fail_now += succeeded and not succeeds
        turned = old * new < 0
        self.signs_flipped += turned
        if (turned or succeeded != succeeds) and len(self.flips) < LISTED:
            self.flips.append(Flip(rollout_id, attempt, old, new))

    @property
    def mean_difference(self) -> float:
        """The mean of new minus old; 0 if nothing was compared."""
        return self.sum_of_differences / self.compared if self.compared else 0.0
