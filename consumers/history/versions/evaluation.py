"""The evaluation of policy versions: a fold of scored trajectories, by version and by task; pass@k,
and bootstrap intervals over tasks.

Only rollouts of one purpose are counted, by default held-out ones. A rollout counts for the one
version that sampled in it, whichever was requested; if nothing was sampled, for the requested
version. A rollout in which several versions sampled does not count for any: it is counted as mixed,
under the lowest. One without a reward counts as not succeeded, and does not enter the mean reward.

Rollouts of one task are not independent, so tasks are resampled, each with all of its rollouts (the
cluster bootstrap). Two versions are compared on the tasks that both were given, so that the
difficulty of a task cancels in the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb

import numpy as np

from rollcall.consumers.history.reading.ranges import versions_of_policy
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
from rollcall.schemas.bounded import json_object
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from rollcall.schemas.names import hint


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and the interval that contains the level's share of resampled means."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return 1 - C(n-c, k) / C(n, k): the unbiased probability that one of k is right, given c of
    n.

    Source: Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ValueError unless 0 <= c <= n and
    1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        msg = f"pass@{k} of {c} right ones among {n} is not defined"
        raise ValueError(msg)
    return 1.0 - comb(n - c, k) / comb(n, k)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The parameters of the bootstrap: equal data and seed give the same interval."""

    resamples: int = 1000
    seed: int = 0
    level: float = 0.95

    def mean(self, sums: Sequence[float], counts: Sequence[float]) -> Estimate:
        """Return sum(sums) / sum(counts), with one of each per task, and percentiles over resampled
        tasks.

        Raises ValueError for no task.
        """
        total, size = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
        if len(total) == 0 or len(total) != len(size) or not (size > 0).all():
            msg = f"a mean needs a sum and a count above 0 of each task; found {len(total)} tasks"
            raise ValueError(msg)
        draw, means = np.random.default_rng(self.seed), np.empty(self.resamples)
        for number in range(self.resamples):
            drawn = draw.integers(0, len(total), len(total))
            means[number] = total[drawn].sum() / size[drawn].sum()
        tail = (1 - self.level) / 2
        low, high = np.quantile(means, (tail, 1 - tail)) if self.resamples else (np.nan, np.nan)
        return Estimate(float(total.sum() / size.sum()), float(low), float(high))

    def difference(self, first: Sequence[float], second: Sequence[float]) -> Estimate:
        """Return the mean of second - first over the same tasks, in the same
        order; raises ValueError."""
        differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
        return self.mean(differences.tolist(), [1.0] * len(differences))


SUCCESS_AT = 1.0
KINDS = ("dataset", "id")
"""Keys of an environment's configuration that name a family of tasks within it."""
Version = tuple[str, int]
"""A policy and its version."""


@dataclass(slots=True)
class TaskTally:
    """The rollouts of one task."""

    family: str
    rollouts: int = 0
    succeeded: int = 0
    rewarded: int = 0
    reward: float = 0.0
    mixed: int = 0
    """Rollouts in which several versions of the policy sampled; the other counts exclude them."""


Tasks = dict[bytes, TaskTally]
"""The results of one version, by task."""


@dataclass(slots=True)
class Evaluation:
    """The fold. Each scored trajectory is given once: the first of its rollout and scoring id."""

    purpose: str = "evaluate"
    success_at: float = SUCCESS_AT
    by_scoring: dict[str, dict[Version, Tasks]] = field(default_factory=dict)
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    """The phases of the counted rollouts, under every scoring that scored them."""
    left_out: int = 0
    """The number of trajectories of another purpose, or without a request."""

    def take(self, scored: ScoredTrajectory) -> None:
        trajectory = scored.trajectory
        request = trajectory.request
        if request is None or request.purpose != self.purpose:
            self.left_out += 1
            return
        sampled = versions_of_policy(trajectory, request.policy_id)
        version = min(sampled, default=max(request.policy_version, request.min_policy_version))
        by_version = self.by_scoring.setdefault(scored.scoring_id, {})
        tasks = by_version.setdefault((request.policy_id, version), {})
        tally = tasks.setdefault(task_key(request), TaskTally(family_of(request)))
        if len(sampled) > 1:
            tally.mixed += 1
            return
        tally.rollouts += 1
        self.phases.take(trajectory)
        if scored.total is not None:
            tally.succeeded += scored.total >= self.success_at
            tally.rewarded += 1
            tally.reward += scored.total

    def scored_by(self, scoring_id: str = "") -> Mapping[Version, Tasks]:
        """Return the results of one scoring; raises Refused if there are
        several and none is named."""
        known = sorted(self.by_scoring)
        if not known:
            msg = (
                f"no trajectory of purpose {self.purpose!r} among the {self.left_out:,} that were "
                "read; --purpose names another"
            )
            raise Refused(msg)
        if not scoring_id and len(known) > 1:
            msg = f"several scorings are there: {', '.join(known)}; name one with --scoring-id"
            raise Refused(msg)
        if scoring_id and scoring_id not in known:
            msg = f"no rewards under scoring id {scoring_id!r}; {hint(scoring_id, known)}"
            raise Refused(msg)
        return self.by_scoring[scoring_id or known[0]]


def evaluate(selection: Selection, purpose: str, success_at: float) -> Evaluation:
    """Fold a range of scored trajectories; with a version in the range, those requested of its
    policy.

    Raises Refused for an empty range.
    """
    evaluation = Evaluation(purpose, success_at)
    of_any_version = replace(selection, span=replace(selection.span, version=None))
    for _, scored in of_any_version.scored():
        evaluation.take(scored)
    return evaluation


def task_key(request: RolloutRequest) -> bytes:
    """Return the digest of the task and the program, whatever the policy:
    versions are compared on it."""
    task = request.task
    return digest(
        task.environment,
        task.environment_config,
        task.seed,
        task.prompt,
        task.system,
        request.agent,
        request.agent_config,
    )


def family_of(request: RolloutRequest) -> str:
    """Return the environment and its kind of task, or the program if there is no environment."""
    task = request.task
    if not task.environment:
        return request.agent
    return f"{task.environment} {_kind(task)}".strip()


def _kind(task: Task) -> str:
    config = json_object(task.environment_config or "{}") or {}
    return next((str(config[key]) for key in KINDS if key in config), "")
