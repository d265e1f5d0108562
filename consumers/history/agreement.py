"""How two scorings of the same trajectories agree."""

from dataclasses import dataclass, field

TOLERANCE = 1e-9
LISTED = 20


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout that one scoring calls good and the other does not."""

    rollout_id: str
    attempt: int
    old: float
    new: float


@dataclass(slots=True)
class Agreement:
    """A fold of pairs of total rewards, the old scoring's first."""

    scoring_id: str
    """The old one."""
    success_at: float = 1.0
    compared: int = 0
    """Trajectories of which both have a reward."""
    agree: int = 0
    """Of these, within 1e-9."""
    sum_of_differences: float = 0.0
    succeed_now: int = 0
    fail_now: int = 0
    signs_flipped: int = 0
    only_old: int = 0
    only_new: int = 0
    neither: int = 0
    flips: list[Flip] = field(default_factory=list)
    """The first of those that succeed, or have a sign, in one scoring only."""

    def take(self, rollout_id: str, attempt: int, old: float | None, new: float | None) -> None:
        """Note one trajectory; None is no reward."""
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
        """New less old; 0 where nothing could be compared."""
        return self.sum_of_differences / self.compared if self.compared else 0.0
