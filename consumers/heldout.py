"""Held-out evaluation of a run: greedy rollouts on seeds that training never draws.

They are ordinary rollouts tagged `evaluate`, so they are never trained on. Each asks for one
version, and does not count if another version sampled in it. The results are a fold of
scored trajectories.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rollcall.producers.admission import task_of_seed
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task, Trajectory
from rollcall.trainer.rules.samples import versions_of

MARK = "/heldout/"
VERSION_DIGITS = 10


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """The result of one rollout: its success, its start, and whether it counts."""

    success: bool
    start: str
    counts: bool = True
    """True if the requested version sampled all of it."""
    failed: bool = False
    """True if it has no reward, because it or its scorer failed: it does not measure the
    version."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One complete evaluation of a version."""

    version: int
    success: float | None
    """The share of successes, where failed rollouts count as none; None if all failed."""
    failed: int
    rollouts: int

    def __str__(self) -> str:
        count = f"{self.failed:,} of {self.rollouts:,} failed"
        if self.success is None:
            return f"v{self.version} not measured: {count}"
        return f"v{self.version} {self.success:.3f}" + (f" ({count})" if self.failed else "")


@dataclass(frozen=True, slots=True)
class HeldOutPlan:
    """The evaluation plan: tasks, frequency, and the goal of the run."""

    template: RolloutRequest
    """A training request of the run; purpose, temperature, seed and ids are replaced."""
    seeds: tuple[int, int]
    """The seeds, [first, end)."""
    every: int
    """Steps between evaluations; 0 evaluates only before and after the run."""
    success_at: float
    """The total reward from which a rollout is a success."""
    goal: float
    """The share of successes at which the run may end; above 1 it never does."""
    tasks: tuple[Task, ...] = ()
    """The tasks by seed, as in `rollcall.producers.admission.Draws`."""

    def requests(self, version: int) -> Iterable[RolloutRequest]:
        """Yield one request per seed. Ids are fixed by their place, so a repeat has no effect."""
        group = f"{self.template.run_id}{MARK}{version}"
        sampling = replace(self.template.sampling, temperature=0.0)
        for seed in range(*self.seeds):
            yield replace(
                self.template,
                rollout_id=f"{group}/{seed}",
                task=task_of_seed(self.template.task, self.tasks, seed),
                purpose="evaluate",
                group_id=group,
                group_size=self.seeds[1] - self.seeds[0],
                sampling=sampling,
                min_policy_version=version,
                policy_version=version,
            )


@dataclass
class HeldOut:
    """The fold of a run's held-out results, by requested version."""

    plan: HeldOutPlan
    asked: list[int] = field(default_factory=list)
    results: dict[int, dict[str, HeldOutResult]] = field(default_factory=dict)

    def requests_of(self, group: str) -> Iterable[RolloutRequest]:
        """Return the requests of one evaluation by its group, or none if it was not asked for."""
        version = self._version_of(group)
        return self.plan.requests(version) if version in self.asked else ()

    def due(self, step: int) -> bool:
        """Return True if the plan evaluates after this step."""
        return step == 0 or (self.plan.every > 0 and step % self.plan.every == 0)

    def take(self, scored: ScoredTrajectory) -> int | None:
        """Note one record; return its requested version, or None if it is not of this run."""
        request = scored.trajectory.request
        if request is None or request.purpose != "evaluate":
            return None
        version = self._version_of(request.group_id)
        if version is None:
            return None
        steps = scored.trajectory.steps
        succeeded = scored.total is not None and scored.total >= self.plan.success_at
        counts = sampled_by(scored.trajectory, request.policy_id, version)
        start = steps[0].text if steps else request.task.task_id
        result = HeldOutResult(succeeded, start, counts, scored.total is None)
        self.results.setdefault(version, {}).setdefault(request.rollout_id, result)
        return version

    def _version_of(self, group: str) -> int | None:
        run_id, mark, version = group.partition(MARK)
        ours = run_id == self.plan.template.run_id and mark and version.isdecimal()
        return int(version) if ours and len(version) <= VERSION_DIGITS else None

    def complete(self, version: int) -> bool:
        return not self.missing(version)

    def missing(self, version: int) -> int:
        """Count the outstanding results of a version."""
        first, end = self.plan.seeds
        return max(0, end - first - len(self.results.get(version, {})))

    def give_up(self, version: int) -> int:
        """Replace outstanding results by ones that do not count; return their number."""
        lost = self.missing(version)
        known = self.results.setdefault(version, {})
        for request in self.plan.requests(version):
            known.setdefault(request.rollout_id, HeldOutResult(False, request.task.task_id, False))
        return lost

    def counted(self, version: int) -> list[HeldOutResult]:
        """Return the results that this version sampled alone."""
        return [result for result in self.results.get(version, {}).values() if result.counts]

    def success(self, version: int) -> float | None:
        """Return the share of successes among the counted rollouts.

        None if none counts, or if all of them failed: then nothing was measured.
        """
        known = self.counted(version)
        if all(result.failed for result in known):
            return None
        return sum(result.success for result in known) / len(known)

    def reached(self) -> bool:
        """Return True if the newest fully evaluated version reached the goal."""
        newest = max((v for v in self.results if self.complete(v)), default=None)
        return newest is not None and self.reached_by(newest)

    def reached_by(self, version: int) -> bool:
        """Return True if a version reached the goal, and sampled all of its rollouts itself."""
        whole = self.complete(version) and len(self.counted(version)) == len(self.results[version])
        success = self.success(version)
        return whole and success is not None and success >= self.plan.goal

    def starts(self, version: int) -> tuple[int, int]:
        """Count the distinct starts that succeed from every seed, and all distinct starts."""
        by_start: dict[str, bool] = {}
        for result in self.counted(version):
            by_start[result.start] = by_start.get(result.start, True) and result.success
        return sum(by_start.values()), len(by_start)

    def measured(self) -> list[Measured]:
        """Return every complete evaluation with at least one counted rollout."""
        complete = [v for v in sorted(self.results) if self.complete(v)]
        return [self._measured(v) for v in complete if self.counted(v)]

    def _measured(self, version: int) -> Measured:
        known = self.counted(version)
        failed = sum(result.failed for result in known)
        return Measured(version, self.success(version), failed, len(known))

    def curve(self) -> list[tuple[int, float | None]]:
        """Return (version, success) of each of these."""
        return [(each.version, each.success) for each in self.measured()]


def sampled_by(trajectory: Trajectory, policy_id: str, version: int) -> bool:
    """Return True if a policy's tokens in a rollout are all of one version, which was available.

    A rollout that failed before anything was sampled counts as a failure of the version.
    """
    if trajectory.sequences is None:
        return False
    if trajectory.status != "finished" and FailureCode.VERSION_GONE in trajectory.reason:
        return False
    if policy_id not in trajectory.policies:
        return True
    return versions_of(trajectory.sequences, trajectory.policies.index(policy_id)) <= {version}
