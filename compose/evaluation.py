"""What scored trajectories say about the versions of a policy: a fold, by version and by task.

Only rollouts of one purpose are counted, held-out ones unless said otherwise. A rollout counts for
the one version that sampled in it, whatever it was asked of; one in which nothing was sampled, for
the version that it was asked of. One in which several versions sampled says nothing about any: it
is counted beside, under the lowest. One without a reward has not succeeded, and has no part in the
mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from consumers.history.estimates import Estimate, estimate, paired, pass_at_k
from consumers.history.ranges import versions
from schemas.errors import Refused
from schemas.ids import digest
from schemas.messages import RolloutRequest, ScoredTrajectory, Task
from schemas.names import hint

SUCCESS_AT = 1.0
ALL = "all"
KINDS = ("dataset", "id")
"""Keys of an environment's configuration that name a family of tasks within it."""
WIDEST = 16
"""The largest k of pass@k that is shown unasked."""

Version = tuple[str, int]
"""A policy and its version."""


@dataclass(slots=True)
class Tally:
    """The rollouts of one task."""

    family: str
    rollouts: int = 0
    succeeded: int = 0
    rewarded: int = 0
    reward: float = 0.0
    mixed: int = 0
    """Rollouts in which several versions of the policy sampled: they are not among the others."""


Tasks = dict[bytes, Tally]
"""What one version did, by task."""


@dataclass(slots=True)
class Evaluation:
    """The fold. A scored trajectory is given once: the first of its rollout and scoring id."""

    purpose: str = "evaluate"
    success_at: float = SUCCESS_AT
    by_scoring: dict[str, dict[Version, Tasks]] = field(default_factory=dict)
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
        tally = tasks.setdefault(task_key(request), Tally(family_of(request)))
        if len(sampled) > 1:
            tally.mixed += 1
            return
        tally.rollouts += 1
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
    try:
        config = orjson.loads(task.environment_config or "{}")
    except orjson.JSONDecodeError:
        return ""
    return next((str(config[key]) for key in KINDS if key in config), "")


@dataclass(frozen=True, slots=True)
class Row:
    """One version on one family of tasks."""

    policy_id: str
    version: int
    family: str
    tasks: int
    rollouts: int
    pass_at: dict[int, float]
    """By k, over the tasks that have so many rollouts."""
    too_few: dict[int, int]
    """By k, how many tasks have fewer."""
    success: Estimate
    """pass@1 with its interval."""
    reward: Estimate | None
    without_reward: int
    mixed: int
    """Rollouts that were left out, since several versions sampled in them."""


def rows(
    found: Mapping[Version, Tasks], ks: Sequence[int] = (), *, resamples: int, seed: int
) -> Iterator[Row]:
    """Every version in order, each family and, where there are several, all together."""
    for (policy_id, version), tasks in sorted(found.items()):
        families = sorted({tally.family for tally in tasks.values()})
        for family in [*families, ALL] if len(families) > 1 else families:
            own = [t for t in tasks.values() if family in (t.family, ALL)]
            if any(tally.rollouts for tally in own):
                yield _row(policy_id, version, family, own, ks, resamples, seed)


def _row(
    policy_id: str,
    version: int,
    family: str,
    tallies: Sequence[Tally],
    ks: Sequence[int],
    resamples: int,
    seed: int,
) -> Row:
    mixed = sum(tally.mixed for tally in tallies)
    tallies = [tally for tally in tallies if tally.rollouts]
    wanted = sorted({1, *(ks or powers(min(tally.rollouts for tally in tallies)))})
    enough = {k: [t for t in tallies if t.rollouts >= k] for k in wanted}
    rewarded = [tally for tally in tallies if tally.rewarded]
    means = [tally.reward for tally in rewarded], [tally.rewarded for tally in rewarded]
    return Row(
        policy_id,
        version,
        family,
        len(tallies),
        sum(tally.rollouts for tally in tallies),
        {k: _pass_at(own, k) for k, own in enough.items() if own},
        {k: len(tallies) - len(own) for k, own in enough.items() if len(own) < len(tallies)},
        estimate(shares(tallies), [1.0] * len(tallies), resamples=resamples, seed=seed),
        estimate(*means, resamples=resamples, seed=seed) if rewarded else None,
        sum(tally.rollouts - tally.rewarded for tally in tallies),
        mixed,
    )


def powers(most: int) -> list[int]:
    """1, 2, 4 and so on, up to `most` and no further than a table is wide."""
    return [1 << n for n in range(min(max(1, most), WIDEST).bit_length())]


def shares(tallies: Sequence[Tally]) -> list[float]:
    """Of every task the share of its rollouts that succeeded."""
    return [tally.succeeded / tally.rollouts for tally in tallies]


def _pass_at(tallies: Sequence[Tally], k: int) -> float:
    return sum(pass_at_k(t.rollouts, t.succeeded, k) for t in tallies) / len(tallies)


@dataclass(frozen=True, slots=True)
class Difference:
    """The second version less the first, on the tasks that both were given."""

    first: Version
    second: Version
    tasks: int
    only_first: int
    only_second: int
    success: Estimate
    reward: Estimate | None
    """Over the tasks that both have a reward of."""


def of_version(found: Mapping[Version, Tasks], wanted: Version) -> Tasks:
    """What one version did; raises Refused naming those that are there."""
    if wanted not in found:
        known = ", ".join(f"{policy_id}@{version}" for policy_id, version in sorted(found))
        msg = f"no rollouts of {wanted[0]}@{wanted[1]} were read; there is {known}"
        raise Refused(msg)
    tasks = {key: tally for key, tally in found[wanted].items() if tally.rollouts}
    if not tasks:
        mixed = sum(tally.mixed for tally in found[wanted].values())
        msg = (
            f"in all {mixed:,} rollouts of {wanted[0]}@{wanted[1]} other versions sampled too, so "
            "they say nothing about it; have it evaluated with --tasks"
        )
        raise Refused(msg)
    return tasks


def paired_by_task(
    found: Mapping[Version, Tasks], first: Version, second: Version, *, resamples: int, seed: int
) -> Difference:
    """The second less the first; raises Refused where a version or a common task is missing."""
    one, other = of_version(found, first), of_version(found, second)
    both = sorted(one.keys() & other.keys())
    if not both:
        msg = (
            f"{first[0]}@{first[1]} and {second[0]}@{second[1]} have no task in common, so they "
            "cannot be compared"
        )
        raise Refused(msg)
    drawn: dict[str, Any] = {"resamples": resamples, "seed": seed}
    rewarded = [key for key in both if one[key].rewarded and other[key].rewarded]
    return Difference(
        first,
        second,
        len(both),
        len(one) - len(both),
        len(other) - len(both),
        paired(shares([one[k] for k in both]), shares([other[k] for k in both]), **drawn),
        paired(_rewards(one, rewarded), _rewards(other, rewarded), **drawn) if rewarded else None,
    )


def _rewards(tallies: Mapping[bytes, Tally], keys: Sequence[bytes]) -> list[float]:
    """Of every task the mean reward of its rollouts."""
    return [tallies[key].reward / tallies[key].rewarded for key in keys]
