"""The results of an evaluation: by version and family, and the difference of two versions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rollcall.consumers.history.reading.ranges import parse_policy
from rollcall.consumers.history.versions.evaluation import (
    Bootstrap,
    Estimate,
    Tasks,
    TaskTally,
    Version,
    pass_at_k,
)
from rollcall.schemas.bounded import whole_number
from rollcall.schemas.errors import Refused

ALL_FAMILIES = "all"
LARGEST_K = 16
"""The largest k of pass@k that is shown by default."""


@dataclass(frozen=True, slots=True)
class VersionResult:
    """The result of one version on one family of tasks."""

    policy_id: str
    version: int
    family: str
    tasks: int
    rollouts: int
    pass_at: dict[int, float]
    """By k, over the tasks with at least k rollouts."""
    too_few: dict[int, int]
    """By k, the number of tasks with fewer rollouts."""
    success: Estimate | None
    """pass@1 with its interval; None if no rollout has a reward, so that nothing was measured."""
    reward: Estimate | None
    without_reward: int
    mixed: int
    """Rollouts that were left out, since several versions sampled in them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The second version minus the first, on the tasks that both were given."""

    first: Version
    second: Version
    tasks: int
    only_first: int
    only_second: int
    success: Estimate
    reward: Estimate | None
    """Over the tasks for which both have a reward."""


def results_of(
    versions: Mapping[Version, Tasks],
    bootstrap: Bootstrap,
    *,
    ks: Sequence[int] = (),
    only: tuple[str, int | None] = ("", None),
    compare: tuple[str, str] | None = None,
) -> tuple[list[VersionResult], Difference | None]:
    """Return the results for every version and family, or for the version in `only`.

    With `compare`, for two versions, with their difference. Raises Refused for missing versions.
    """
    difference = None
    if compare:
        first, second = (parse_version(text, versions) for text in compare)
        difference = paired_by_task(versions, first, second, bootstrap)
        versions = {version: versions[version] for version in (first, second)}
    elif only[1] is not None:
        version = only[0], only[1]
        versions = {version: tasks_of_version(versions, version)}
    results = list(version_results(versions, ks, bootstrap))
    measured = any(result.success for result in results)
    for k in ks:
        if measured and not any(k in result.pass_at for result in results):
            most = max(t.rollouts for tasks in versions.values() for t in tasks.values())
            msg = f"pass@{k} needs {k} rollouts of a task; the most that one has is {most}"
            raise Refused(msg)
    return results, difference


def parse_version(text: str, known: Mapping[Version, Tasks]) -> Version:
    """Parse P@VERSION, or VERSION if there is only one policy; raises Refused."""
    policies = sorted({policy_id for policy_id, _ in known})
    number = whole_number(text)
    if number is not None and len(policies) == 1:
        return policies[0], number
    if "@" not in text:
        msg = f"--compare {text!r} names no version; write POLICY@VERSION, such as {policies[0]}@3"
        raise Refused(msg)
    policy_id, version = parse_policy(text)
    return policy_id, version or 0


def version_results(
    versions: Mapping[Version, Tasks], ks: Sequence[int], bootstrap: Bootstrap
) -> Iterator[VersionResult]:
    """Yield results by version, for each family and, if there are several, all together."""
    for version, tasks in sorted(versions.items()):
        families = sorted({tally.family for tally in tasks.values()})
        for family in [*families, ALL_FAMILIES] if len(families) > 1 else families:
            tallies = [t for t in tasks.values() if family in (t.family, ALL_FAMILIES)]
            if any(tally.rollouts for tally in tallies):
                yield _result(version, family, tallies, ks, bootstrap)


def _result(
    version: Version,
    family: str,
    tallies: Sequence[TaskTally],
    ks: Sequence[int],
    bootstrap: Bootstrap,
) -> VersionResult:
    """Return the result over tasks of which at least one has a rollout of this version alone."""
    counted = [tally for tally in tallies if tally.rollouts]
    rewarded = [tally for tally in counted if tally.rewarded]
    asked = sorted({1, *(ks or powers(min(tally.rollouts for tally in counted)))})
    enough = {k: [tally for tally in counted if tally.rollouts >= k] for k in asked}
    rewards = [tally.reward for tally in rewarded], [tally.rewarded for tally in rewarded]
    return VersionResult(
        policy_id=version[0],
        version=version[1],
        family=family,
        tasks=len(counted),
        rollouts=sum(tally.rollouts for tally in counted),
        pass_at={
            k: sum(pass_at_k(t.rollouts, t.succeeded, k) for t in tasks) / len(tasks)
            for k, tasks in enough.items()
            if tasks and rewarded
        },
        too_few={k: len(counted) - len(t) for k, t in enough.items() if len(t) < len(counted)},
        success=bootstrap.mean(shares(counted), [1.0] * len(counted)) if rewarded else None,
        reward=bootstrap.mean(*rewards) if rewarded else None,
        without_reward=sum(tally.rollouts - tally.rewarded for tally in counted),
        mixed=sum(tally.mixed for tally in tallies),
    )


def powers(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, up to `most` and at most LARGEST_K."""
    return [1 << n for n in range(min(max(1, most), LARGEST_K).bit_length())]


def shares(tallies: Sequence[TaskTally]) -> list[float]:
    """Return the share of successful rollouts of every task."""
    return [tally.succeeded / tally.rollouts for tally in tallies]


def tasks_of_version(versions: Mapping[Version, Tasks], wanted: Version) -> Tasks:
    """Return the tasks of one version; raises Refused with the existing versions."""
    if wanted not in versions:
        known = ", ".join(f"{policy_id}@{version}" for policy_id, version in sorted(versions))
        msg = f"no rollouts of {wanted[0]}@{wanted[1]} were read; there is {known}"
        raise Refused(msg)
    tasks = {key: tally for key, tally in versions[wanted].items() if tally.rollouts}
    if not tasks:
        mixed = sum(tally.mixed for tally in versions[wanted].values())
        msg = (
            f"in all {mixed:,} rollouts of {wanted[0]}@{wanted[1]} other versions sampled too, so "
            "they say nothing about it; have it evaluated with --tasks"
        )
        raise Refused(msg)
    return tasks


def paired_by_task(
    versions: Mapping[Version, Tasks], first: Version, second: Version, bootstrap: Bootstrap
) -> Difference:
    """Return the second minus the first; raises Refused if a version or
    a common task is missing."""
    one, other = tasks_of_version(versions, first), tasks_of_version(versions, second)
    both = sorted(one.keys() & other.keys())
    if not both:
        msg = (
            f"{first[0]}@{first[1]} and {second[0]}@{second[1]} have no task in common, so they "
            "cannot be compared"
        )
        raise Refused(msg)
    for version, tasks in ((first, one), (second, other)):
        if not any(tally.rewarded for tally in tasks.values()):
            count = sum(tally.rollouts for tally in tasks.values())
            msg = (
                f"{version[0]}@{version[1]} was not measured: none of its {count:,} rollouts has a "
                "reward, so it cannot be compared"
            )
            raise Refused(msg)
    rewarded = [key for key in both if one[key].rewarded and other[key].rewarded]
    successes = shares([one[key] for key in both]), shares([other[key] for key in both])
    rewards = _mean_rewards(one, rewarded), _mean_rewards(other, rewarded)
    return Difference(
        first=first,
        second=second,
        tasks=len(both),
        only_first=len(one) - len(both),
        only_second=len(other) - len(both),
        success=bootstrap.difference(*successes),
        reward=bootstrap.difference(*rewards) if rewarded else None,
    )


def _mean_rewards(tallies: Mapping[bytes, TaskTally], keys: Sequence[bytes]) -> list[float]:
    """Return the mean reward of the rollouts of every task."""
    return [tallies[key].reward / tallies[key].rewarded for key in keys]
