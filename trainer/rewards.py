"""What an advantage rule sees of a batch: one frozen view, rows in log order.

N is the number of trajectories; a trajectory counts once, however many sequences it has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
from numpy.typing import NDArray

from schemas.errors import Refused
from schemas.packed import logprobs_of
from trainer.samples import Sample, mine

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rewards:
    """What is known of N trajectories before anything is computed on their tokens."""

    totals_N: Floats
    groups_N: Ints
    """Numbers of groups, in order of appearance."""
    lengths_N: Ints
    """Tokens that our policy sampled."""
    channels: Mapping[str, Floats] = field(default_factory=dict)
    """By scorer what it gave, [N]; nan where it gave nothing."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By scorer its weight in the total."""
    tasks: tuple[str, ...] = ()
    """Of each trajectory the id of its task."""
    ends: tuple[str, ...] = ()
    """Of each trajectory why it ended: `finished`, or the limit that it ended at."""
    logprob_sums_N: Floats | None = None
    """Σ of the behaviour log-probabilities of our tokens, nats; for rules that need `logprobs`."""
    kl: tuple[Floats, ...] | None = None
    """Of each trajectory its sampled tokens' KL estimates to the reference, nats; for `ref`."""
    log_weights_N: Floats | None = None
    """Σ_t of lp less μ over the sampled tokens, lp of the step's start; for `prox`."""
    gradient_norms_N: Floats | None = None
    """‖∇ log π(τ_i)‖² at the step's start, log π(τ) the sum over tokens; for `norms`."""
    entropy_before: float = nan
    """The mean entropy of the tokens of the step before, nats; nan before any."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """What a rule gives where one number per trajectory does not say it all."""

    values_N: Floats
    tokens: tuple[Floats, ...] | None = None
    """Per token: of each trajectory its sampled tokens' advantages, over all its sequences."""
    keep_N: Bools | None = None
    """False: leaves the update; no denominator changes."""


AdvantageRule = Callable[..., Floats | Advantages]
"""(rewards, options) to advantages; a user's function without options takes the rewards alone."""


@dataclass(frozen=True, slots=True)
class Bonuses:
    """What a rule of exploration gives where the weights of entropies do not say it all."""

    entropy_N: Floats
    uniform_N: Floats
    """What KL(uniform ‖ policy) costs on each one's tokens."""
    first: int = 0
    """On so many of the first tokens of each turn; 0: on all."""


Exploration = Callable[..., Floats | Bonuses]
"""(rewards, the learner's entropy weight, options) to the weight of each one's entropy, [N]."""
Shaping = Callable[..., Floats]
"""(rewards, options) to the totals that advantages are made of, [N]."""


def rewards_of(samples: Sequence[Sample], needs: frozenset[str] = frozenset()) -> Rewards:
    """The view of a batch; what none of the `needs` asks for is not computed."""
    return Rewards(
        np.array([sample.reward for sample in samples], dtype=np.float64),
        group_numbers([sample.group for sample in samples]),
        np.array([sample.length for sample in samples], dtype=np.int64),
        _channels(samples),
        {each.scorer: each.weight for sample in samples for each in sample.scored.rewards},
        tuple(sample.task_id for sample in samples),
        tuple(sample.end for sample in samples),
        _logprob_sums(samples) if "logprobs" in needs else None,
    )


def group_numbers(groups: Sequence[str]) -> Ints:
    """Groups numbered in order of appearance, [N]."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def per_group(
    rewards: Rewards, advantages_of: Callable[[Floats], Floats], *, shifted: bool = True
) -> Floats:
    """Advantages of each group by itself, [N].

    Rewards are shifted by one of their number before anything else, which changes no formula that
    compares and makes the law exact: equal rewards teach nothing. `shifted` is false for a formula
    that does more than compare. Raises Refused for a group of one.
    """
    advantages = np.empty_like(rewards.totals_N)
    for rows in members(rewards.groups_N):
        group = rewards.totals_N[rows]
        advantages[rows] = advantages_of(group - group[0] if shifted else group)
    return advantages


def members(groups_N: Ints) -> list[Bools]:
    """Of each group which rows are its own, bool [N]; raises Refused for a group of one."""
    found = rows_by_group(groups_N)
    for group, rows in enumerate(found):
        if rows.sum() < 2:
            msg = f"group {group} holds one trajectory and has no baseline; drop it (`singleton`)"
            raise Refused(msg)
    return found


def rows_by_group(groups_N: Ints) -> list[Bools]:
    """The same, whatever the groups hold."""
    return [groups_N == group for group in np.unique(groups_N)]


def failed_groups(rewards: Rewards, above: float) -> Bools:
    """Trajectories of groups in which no reward is above a bound, bool [N]."""
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
    return np.array([
        sum(
            float(logprobs_of(each.behaviour_logprobs)[mine(each, sample.policy_index)].sum())
            for each in sample.scored.trajectory.sequences or ()
        )
        for sample in samples
    ], dtype=np.float64)  # fmt: skip
