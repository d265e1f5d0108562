"""The inputs and results of reward rules: shaping, advantages, exploration; rows in log order.

N is the number of trajectories; a trajectory counts once, however many sequences it has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.errors import Refused
from rollcall.schemas.packed import logprobs_of
from rollcall.schemas.rules import Need
from rollcall.trainer.rules.samples import Sample, mine

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of N trajectories, and further quantities that rules need."""

    totals_N: Floats
    groups_N: Ints
    """The group number of each trajectory, in order of appearance."""
    lengths_N: Ints
    """The number of tokens that our policy sampled."""
    channels: Mapping[str, Floats] = field(default_factory=dict)
    """The rewards by scorer, [N]; nan where it gave none."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each scorer in the total."""
    tasks: tuple[str, ...] = ()
    """The task id of each trajectory."""
    ends: tuple[str, ...] = ()
    """The end of each trajectory: `finished`, or the limit that it ended at."""
    logprob_sums_N: Floats | None = None
    """Σ of the behaviour log-probabilities of our tokens, nats; for rules that need `logprobs`."""
    kl: tuple[Floats, ...] | None = None
    """KL estimates to the reference of each trajectory's sampled tokens, nats; for `ref`."""
    log_weights_N: Floats | None = None
    """Σ_t of lp less μ over the sampled tokens, lp at the step's start; for `prox`."""
    gradient_norms_N: Floats | None = None
    """‖∇ log π(τ_i)‖² at the step's start, log π(τ) the sum over tokens; for `norms`."""
    entropy_before: float = nan
    """The mean token entropy of the previous step, nats; nan before the first."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The result of an advantage rule that is more than one number per trajectory."""

    values_N: Floats
    tokens: tuple[Floats, ...] | None = None
    """Advantages per token: each trajectory's sampled tokens, over all its sequences."""
    keep_N: Bools | None = None
    """False: left out of the update; no denominator changes."""


AdvantageRule = Callable[..., Floats | Advantages]
"""A function of (rewards, options) to advantages; without options it takes the rewards alone."""


@dataclass(frozen=True, slots=True)
class Bonuses:
    """The result of an exploration rule that is more than entropy coefficients."""

    entropy_N: Floats
    uniform_N: Floats
    """The coefficient of KL(uniform ‖ policy) on the tokens of each trajectory."""
    first: int = 0
    """The number of first tokens of each turn that the KL applies to; 0: all."""


Exploration = Callable[..., Floats | Bonuses]
"""A function of (rewards, the learner's entropy weight, options) to entropy weights, [N]."""
Shaping = Callable[..., Floats]
"""A function of (rewards, options) to the totals for the advantages, [N]."""


def rewards_of(samples: Sequence[Sample], needs: frozenset[Need] = frozenset()) -> Rewards:
    """Build the view of a batch; log-probability sums only if `needs` contains `logprobs`."""
    return Rewards(
        np.array([sample.reward for sample in samples], dtype=np.float64),
        group_numbers([sample.group for sample in samples]),
        np.array([sample.length for sample in samples], dtype=np.int64),
        _channels(samples),
        {each.scorer: each.weight for sample in samples for each in sample.scored.rewards},
        tuple(sample.task_id for sample in samples),
        tuple(sample.end for sample in samples),
        _logprob_sums(samples) if Need.LOGPROBS in needs else None,
    )


def group_numbers(groups: Sequence[str]) -> Ints:
    """Number the groups in order of appearance, [N]."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def per_group(
    rewards: Rewards, advantages_of: Callable[[Floats], Floats], *, shifted: bool = True
) -> Floats:
    """Compute advantages within each group, [N].

    Rewards are shifted by the first of the group, so that equal rewards give exactly 0 in a formula
    of differences. Set `shifted` to False for a formula that depends on absolute rewards. Raises
    Refused for a group of one.
    """
    advantages = np.empty_like(rewards.totals_N)
    for rows in members(rewards.groups_N):
        group = rewards.totals_N[rows]
        advantages[rows] = advantages_of(group - group[0] if shifted else group)
    return advantages


def members(groups_N: Ints) -> list[Bools]:
    """Return a mask of rows per group, bool [N]. Raises Refused for a group of one."""
    found = rows_by_group(groups_N)
    for group, rows in enumerate(found):
        if rows.sum() < 2:
            msg = f"group {group} holds one trajectory and has no baseline; drop it (`singleton`)"
            raise Refused(msg)
    return found


def rows_by_group(groups_N: Ints) -> list[Bools]:
    """Return a mask of rows per group, bool [N]; groups may have any size."""
    return [groups_N == group for group in np.unique(groups_N)]


def failed_groups(rewards: Rewards, above: float) -> Bools:
    """Return a mask of trajectories whose group has no reward above a bound, bool [N]."""
    failed_N = np.zeros(len(rewards.totals_N), dtype=np.bool_)
    for rows in rows_by_group(rewards.groups_N):
        failed_N[rows] = rewards.totals_N[rows].max() <= above
    return failed_N


def _channels(samples: Sequence[Sample]) -> dict[str, Floats]:
    given = [{each.scorer: each.value for each in sample.scored.rewards} for sample in samples]
    scorers = sorted({scorer for one in given for scorer in one})
    return {
        scorer: np.array([np.nan if (v := one.get(scorer)) is None else v for one in given])
        for scorer in scorers
    }


def _logprob_sums(samples: Sequence[Sample]) -> Floats:
    return np.array(
        [
            sum(
                float(logprobs_of(each.behaviour_logprobs)[mine(each, sample.policy_index)].sum())
                for each in sample.scored.trajectory.sequences or ()
            )
            for sample in samples
        ],
        dtype=np.float64,
    )
