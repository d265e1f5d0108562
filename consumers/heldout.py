"""Held-out evaluation of a run: greedy rollouts on seeds that training never draws.

They are ordinary rollouts tagged `evaluate`, so they are never trained on; they are asked of one
version, and what another one has sampled in is not counted as its. What came of them is a fold of
scored trajectories.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from producers.admission import task_of_seed
from schemas.messages import RolloutRequest, ScoredTrajectory, Task, Trajectory
from trainer.samples import versions_of

MARK = "/heldout/"
VERSION_DIGITS = 10
GONE = "version_gone"
"""The code under which a call fails that is asked of a version which cannot be had any more."""


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """One rollout: whether it succeeded, where it began, and whether it says anything."""

    success: bool
    start: str
    counts: bool = True
    """Whether the version that it was asked of sampled all of it."""
    failed: bool = False
    """It has no reward, for it failed or its scorer did: it shows nothing of what the version can
    do."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One complete evaluation of a version."""

    version: int
    success: float | None
    """The share that succeeded, failed rollouts among those that did not; None where all failed."""
    failed: int
    rollouts: int

    def __str__(self) -> str:
        count = f"{self.failed:,} of {self.rollouts:,} failed"
        if self.success is None:
            return f"v{self.version} not measured: {count}"
        return f"v{self.version} {self.success:.3f}" + (f" ({count})" if self.failed else "")


@dataclass(frozen=True, slots=True)
class HeldOutPlan:
    """What is evaluated, how often, and when the run has reached its goal."""

    template: RolloutRequest
    """A training request of the run; purpose, temperature, seed and ids are changed."""
    seeds: tuple[int, int]
    """[first, end)"""
    every: int
    """In steps; 0 is only before and after."""
    success_at: float
    """A rollout whose total reward is at least this has succeeded."""
    goal: float
    """The run may end when this share succeeds; above 1 it never does."""
    tasks: tuple[Task, ...] = ()
    """What a seed stands for, as in `producers.admission.Draws`."""

    def requests(self, version: int) -> Iterable[RolloutRequest]:
        """One request a seed. Ids are names of the place, so asking twice is asking once."""
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
    """The fold of a run's held-out results, by version asked for."""

    plan: HeldOutPlan
    asked: list[int] = field(default_factory=list)
    results: dict[int, dict[str, HeldOutResult]] = field(default_factory=dict)

    def requests_of(self, group: str) -> Iterable[RolloutRequest]:
        """The requests of one evaluation that was asked for, by their group; else none."""
        version = self._version_of(group)
        return self.plan.requests(version) if version in self.asked else ()

    def due(self, step: int) -> bool:
        """Whether the plan wants an evaluation after this step."""
        return step == 0 or (self.plan.every > 0 and step % self.plan.every == 0)

    def take(self, scored: ScoredTrajectory) -> int | None:
        """Note one record; return the version it was asked for, None if it is none of ours."""
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
        """How many results of a version have not come."""
        first, end = self.plan.seeds
        return max(0, end - first - len(self.results.get(version, {})))

    def give_up(self, version: int) -> int:
        """Count what has not come as saying nothing; returns how many."""
        lost = self.missing(version)
        known = self.results.setdefault(version, {})
        for request in self.plan.requests(version):
            known.setdefault(request.rollout_id, HeldOutResult(False, request.task.task_id, False))
        return lost

    def counted(self, version: int) -> list[HeldOutResult]:
        """The results that are this version's and no other's."""
        return [result for result in self.results.get(version, {}).values() if result.counts]

    def success(self, version: int) -> float | None:
        """The share of held-out rollouts that succeeded, of those that count.

        None where none counts, and where all of them failed: then nothing was measured.
        """
        known = self.counted(version)
        if all(result.failed for result in known):
            return None
        return sum(result.success for result in known) / len(known)

    def reached(self) -> bool:
        """Whether the newest of the versions that are wholly evaluated reached the goal."""
        newest = max((v for v in self.results if self.complete(v)), default=None)
        return newest is not None and self.reached_by(newest)

    def reached_by(self, version: int) -> bool:
        """Whether a version reached the goal, in rollouts that it has all sampled itself."""
        whole = self.complete(version) and len(self.counted(version)) == len(self.results[version])
        success = self.success(version)
        return whole and success is not None and success >= self.plan.goal

    def starts(self, version: int) -> tuple[int, int]:
        """How many distinct beginnings succeed from every seed, of how many there are."""
        by_start: dict[str, bool] = {}
        for result in self.counted(version):
            by_start[result.start] = by_start.get(result.start, True) and result.success
        return sum(by_start.values()), len(by_start)

    def measured(self) -> list[Measured]:
        """Every complete evaluation in which something is the version's own."""
        complete = [v for v in sorted(self.results) if self.complete(v)]
        return [self._measured(v) for v in complete if self.counted(v)]

    def _measured(self, version: int) -> Measured:
        known = self.counted(version)
        failed = sum(result.failed for result in known)
        return Measured(version, self.success(version), failed, len(known))

    def curve(self) -> list[tuple[int, float | None]]:
        """(version, success) of each of these."""
        return [(each.version, each.success) for each in self.measured()]


def sampled_by(trajectory: Trajectory, policy_id: str, version: int) -> bool:
    """Whether a policy's tokens in a rollout are all of one version, and it was to be had.

    A rollout that failed before anything was sampled is the version's failure.
    """
    if trajectory.sequences is None:
        return False
    if trajectory.status != "finished" and GONE in trajectory.reason:
        return False
    if policy_id not in trajectory.policies:
        return True
    return versions_of(trajectory.sequences, trajectory.policies.index(policy_id)) <= {version}
