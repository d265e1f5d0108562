"""What scored trajectories say about the versions of a policy: a fold, by version and by task.

Only rollouts of one purpose are counted, held-out ones unless said otherwise. A rollout counts for
the one version that sampled in it, whatever it was asked of; one in which nothing was sampled, for
the version that it was asked of. One in which several versions sampled says nothing about any: it
is counted beside, under the lowest. One without a reward has not succeeded, and has no part in the
mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from consumers.history.phase_quantiles import PhaseTimes
from consumers.history.ranges import versions
from consumers.history.selection import Selection
from schemas.bounded import json_object
from schemas.errors import Refused
from schemas.ids import digest
from schemas.messages import RolloutRequest, ScoredTrajectory, Task
from schemas.names import hint

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
    """Rollouts in which several versions of the policy sampled: they are not among the others."""


Tasks = dict[bytes, TaskTally]
"""What one version did, by task."""


@dataclass(slots=True)
class Evaluation:
    """The fold. A scored trajectory is given once: the first of its rollout and scoring id."""

    purpose: str = "evaluate"
    success_at: float = SUCCESS_AT
    by_scoring: dict[str, dict[Version, Tasks]] = field(default_factory=dict)
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    """Of the rollouts that are counted, under every scoring that judged them."""
    left_out: int = 0
    """Trajectories of another purpose, or without a request."""

    def take(self, scored: ScoredTrajectory) -> None:
        trajectory = scored.trajectory
        request = trajectory.request
        if request is None or request.purpose != self.purpose:
            self.left_out += 1
            return
        sampled = versions(trajectory, request.policy_id)
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
        """What one scoring says; raises Refused where several do and none is named."""
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
    """Fold a range of scored trajectories; of a policy's version those that were asked of it.

    Raises Refused for a range in which nothing lies.
    """
    evaluation = Evaluation(purpose, success_at)
    of_any_version = replace(selection, span=replace(selection.span, version=None))
    for _, scored in of_any_version.scored():
        evaluation.take(scored)
    return evaluation


def task_key(request: RolloutRequest) -> bytes:
    """Names what is asked and of which program, whoever asked: what versions are compared on."""
    task = request.task
    return digest(
        task.environment, task.environment_config, task.seed, task.prompt, task.system,
        request.agent, request.agent_config,
    )  # fmt: skip


def family_of(request: RolloutRequest) -> str:
    """The environment, and what its configuration calls the kind of task; else the program."""
    task = request.task
    if not task.environment:
        return request.agent
    return f"{task.environment} {_kind(task)}".strip()


def _kind(task: Task) -> str:
    config = json_object(task.environment_config or "{}") or {}
    return next((str(config[key]) for key in KINDS if key in config), "")
