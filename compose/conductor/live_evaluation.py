"""Evaluation of a policy by new rollouts.

They are ordinary rollouts of purpose `evaluate` under their own run id: trainers skip them, and
they can be evaluated again from the log by that run id.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.compose.request_checks import RequestChecks
from rollcall.compose.runs.publish_policy import announced
from rollcall.compose.runs.recipe import SHIPPED, Recipe, load_recipe
from rollcall.compose.runs.seed_tasks import tasks_in
from rollcall.compose.submission import lines_of, publish, watch
from rollcall.consumers.history.reading.ranges import parse_policy
from rollcall.consumers.history.rollouts.progress import RolloutProgress
from rollcall.consumers.history.versions.evaluation import Evaluation
from rollcall.producers.admission import task_of_seed
from rollcall.producers.submit import new_rollout_id, requests_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from rollcall.schemas.names import hint

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster


@dataclass(frozen=True, slots=True)
class LiveEvaluation:
    """An evaluation by n new rollouts of each task."""

    tasks: str
    """A recipe, or a file of lines; see `tasks_of`."""
    n: int
    seed: int
    scoring_id: str
    success_at: float
    timeout_s: float
    begin_within_s: float = 30.0

    def run(self, cluster: "Cluster", policy: str) -> tuple[str, Evaluation]:
        """Evaluate a policy, or one version of it; return the rollouts' run id and the fold.

        Raises Refused before anything is published, NotScored if rollouts are not scored in time.
        """
        policy_id, version = parse_policy(policy)
        checks = RequestChecks(cluster)
        tasks = list(tasks_of(self.tasks, policy_id, self.n, checks))
        version = _served(cluster, policy_id, version)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        run_id = f"eval-{policy_id}-{stamp}-{new_rollout_id()[:6]}"
        asked = (self.scoring_id,) if self.scoring_id else ()
        tasks = [replace(task, scorings=asked) for task in tasks]
        requests = list(members(tasks, n=self.n, run_id=run_id, version=version, seed=self.seed))
        for request in requests:
            checks.check(request)
        evaluation = Evaluation(success_at=self.success_at)
        with closing(RolloutProgress(cluster, requests, self.scoring_id)) as progress:
            publish(cluster, requests)
            watch(progress, self.timeout_s, begin_within_s=self.begin_within_s)
            for row in progress.rows.values():
                if row.scored is not None:
                    evaluation.take(row.scored)
        return run_id, evaluation


def members(
    tasks: Sequence[RolloutRequest], *, n: int, run_id: str, version: int, seed: int
) -> Iterator[RolloutRequest]:
    """Yield n rollouts of each task as a group; the same seed gives the same draws each time."""
    for number, task in enumerate(tasks):
        group = f"{run_id}/task/{number}"
        for member in range(n):
            yield replace(
                task,
                rollout_id=f"{group}/{member}",
                run_id=run_id,
                purpose="evaluate",
                group_id=group,
                group_size=n,
                sampling_seed=f"{seed}/{number}/{member}",
                min_policy_version=version,
                policy_version=version,
            )


def tasks_of(
    source: str, policy_id: str, n: int, checks: RequestChecks
) -> Iterator[RolloutRequest]:
    """Yield a recipe's held-out seeds (greedy if n is 1), or the requests in a file's lines.

    Of a line, its task, program, sampling and limits are used. Raises Refused.
    """
    if source in SHIPPED or source.endswith(".toml"):
        yield from _held_out(load_recipe(source)[0], policy_id, n)
        return
    if source != "-" and not Path(source).is_file():
        msg = f"--tasks {source!r} is neither a file nor a recipe; {hint(source, SHIPPED)}"
        raise Refused(msg)
    defaults = RolloutRequest("", Task(), policy_id=policy_id)
    read = requests_of(
        lines_of(source),
        lambda request: checks.check(replace(request, policy_id=policy_id)),
        defaults=defaults,
    )
    tasks = [replace(request, policy_id=policy_id) for request in read]
    if not tasks:
        msg = f"no task in {source!r}: it holds no line that is not empty"
        raise Refused(msg)
    yield from tasks


def _held_out(recipe: Recipe, policy_id: str, n: int) -> Iterator[RolloutRequest]:
    template = recipe.template("", policy_id)
    if n == 1:
        template = replace(template, sampling=replace(template.sampling, temperature=0.0))
    tasks = tasks_in(recipe.task.suite(), template.task) if recipe.task.tasks else ()
    for number in range(*recipe.evaluation.seeds):
        yield replace(template, task=task_of_seed(template.task, tasks, number))


def _served(cluster: "Cluster", policy_id: str, wanted: int | None) -> int:
    """Return the version to evaluate; raises Refused for one that model servers do not serve."""
    known = announced(cluster, policy_id)
    newest = max(known, default=-1)
    if wanted is None:
        return max(0, newest)
    if wanted in known:
        return wanted
    if wanted > newest:
        what = f"its newest is {newest}" if newest >= 0 else "none was announced"
        msg = f"version {wanted} of {policy_id!r} was never announced; {what}"
        raise Refused(msg)
    msg = (
        f"version {wanted} of {policy_id!r} is not announced any more, so nobody can serve it; the "
        f"newest is {newest}; what is recorded of it is evaluated without --tasks"
    )
    raise Refused(msg)
