"""Advantage rules: from the rewards of a batch to advantages of its tokens.

Deviations from a mean are computed in float64 on the CPU, so that a re-run gives the same bits. A
standard deviation divides by n − 1.

- `batch_normalised`: over the spread of the whole batch.
- `grpo`: relative to the group, over the group's spread.
- `dr_grpo`: relative to the group, without the division that favours easy and hard tasks.
- `rloo`: leave one out: the baseline of each trajectory is the mean of the others.
- `success_weighted`: successes weighted by their rarity in the group: the gradient of the log
  success rate.
- `gdpo`: rewards of several scorers, each divided by its own spread before they are added.
- `mc_grpo`: medians in place of means, so that an outlier does not change the baseline of others.
- `opob`: the baseline of least variance off-policy: weighted by squared gradient norms.
- `reinforce_pp`, `reinforce_pp_baseline`: returns per token, whitened over all tokens of the batch.
"""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.rewards import Advantages, Bools, Floats, Rewards, members, per_group
from rollcall.trainer.rules.tokens import needed

EPSILON = 1e-4


def centred(rewards: Floats) -> Floats:
    """R − mean."""
    middle = float(rewards.mean())
    return rewards - middle


def whitened(rewards: Floats) -> Floats:
    """(R − mean) / (std + 1e-4)."""
    scale = float(rewards.std(ddof=1)) + EPSILON
    return centred(rewards) / scale


def batch_normalised(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = (R_i − mean_batch) / (std_batch + 1e-4). Ours; a lone trajectory gets 0."""
    del options
    totals_N = rewards.totals_N
    if len(totals_N) < 2:
        return np.zeros_like(totals_N)
    return whitened(totals_N - totals_N[0])


BATCH_NORMALISED = Rule(
    "batch_normalised", "advantage", "ours", batch_normalised, needs=frozenset({Need.BATCH})
)


def grpo(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = (R_i − mean_g) / (std_g + 1e-4). Source: DeepSeekMath, arXiv 2402.03300, §4.1."""
    del options
    return per_group(rewards, whitened)


GRPO = Rule(
    "grpo", "advantage", "DeepSeekMath, arXiv 2402.03300, §4.1", grpo, needs=frozenset({Need.GROUP})
)


def dr_grpo(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = R_i − mean_g, with `aggregate: seq_mean_token_sum_norm`.

    Source: Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2.
    """
    del options
    return per_group(rewards, centred)


DR_GRPO = Rule(
    "dr_grpo",
    "advantage",
    "Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2",
    dr_grpo,
    needs=frozenset({Need.GROUP}),
    aggregate="seq_mean_token_sum_norm",
)


def rloo(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = R_i − Σ_{j≠i} R_j / (G−1) = (G / (G−1)) (R_i − mean_g).

    Source: Back to Basics, arXiv 2402.14740, §3 (leave one out).
    """
    del options
    return per_group(rewards, lambda r: centred(r) * len(r) / (len(r) - 1))


RLOO = Rule(
    "rloo", "advantage", "Back to Basics, arXiv 2402.14740, §3", rloo, needs=frozenset({Need.GROUP})
)


@dataclass(frozen=True, slots=True)
class Success:
    """The threshold of a success, and the weight of differences between failures."""

    above: float = 0.0
    """A reward up to this is a failure."""
    shortfall: float = 0.0
    """The weight c of a failure's distance below `above`, relative to others of its group."""

    def __post_init__(self) -> None:
        require(
            "shortfall", self.shortfall, self.shortfall >= 0, "give 0 (off) or more, such as 10"
        )


def success_weighted(rewards: Rewards, options: Success) -> Floats:
    """A_i = (S_i − mean_g S) / mean_g S + c·(F_i − mean_g F), the first 0 without a success.

    S = max(R − above, 0), F = min(R − above, 0). One success among eight weighs 7, eight among
    eight 0; costs of failures, such as for unreadable output, are compared apart. Source: ours;
    for binary rewards the expectation is the gradient of the log of the group's success rate.
    """

    def weighted(group: Floats) -> Floats:
        earned = np.maximum(group - options.above, 0.0)
        lacked = np.minimum(group - options.above, 0.0)
        failures = options.shortfall * centred(lacked - lacked[0])
        mean = float(earned.mean())
        return failures if mean == 0 else failures + centred(earned - earned[0]) / mean

    return per_group(rewards, weighted, shifted=False)


SUCCESS_WEIGHTED = Rule(
    "success_weighted",
    "advantage",
    "ours",
    success_weighted,
    Success,
    needs=frozenset({Need.GROUP}),
)


def gdpo(rewards: Rewards, options: NoOptions) -> Floats:
    """A = (S − mean_batch) / (std_batch + 1e-4), S = Σ_k w_k (R_k − mean_g R_k) / (std_g + 1e-4).

    K ≥ 2 scorers with their weights; a missing reward counts 0. Unlike a sum of rewards, it tells
    (1, 0) from (0, 1). Source: GDPO, method section. Raises Refused with one scorer.
    """
    del options
    if len(rewards.channels) < 2:
        msg = f"gdpo compares scorers, and there is {len(rewards.channels)}; give a second, or grpo"
        raise Refused(msg)
    sums_N = np.zeros_like(rewards.totals_N)
    for rows in members(rewards.groups_N):
        for scorer, given_N in sorted(rewards.channels.items()):
            group = np.nan_to_num(given_N[rows], nan=0.0)
            sums_N[rows] += rewards.weights.get(scorer, 1.0) * whitened(group - group[0])
    return whitened(sums_N - sums_N[0])


GDPO = Rule(
    "gdpo",
    "advantage",
    "GDPO, method section",
    gdpo,
    needs=frozenset({Need.BATCH, Need.GROUP, Need.CHANNELS}),
)


MAD_EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class MedianScale:
    """Bound and scale of the quotients."""

    bound: float = 10.0
    """The largest absolute value of an advantage."""
    rescale: bool = False
    """True: multiply each by (members of its group / members whose advantage is not 0)."""

    def __post_init__(self) -> None:
        require("bound", self.bound, self.bound > 0, "give a number above 0")


def mc_grpo(rewards: Rewards, options: MedianScale) -> Advantages:
    """A_i = (R_i − median_g) / (MAD_g + 1e-3), MAD_g = median_g |R − median_g|.

    The median rollout, the first in the log among equals, is left out of the update; give groups an
    odd size. Where the MAD is 0 (most rewards are equal) the scale is 1, and advantages are clipped
    to `bound`. Source: MC-GRPO, method section; the last two rules are ours.
    """
    values_N = np.empty_like(rewards.totals_N)
    keep_N = np.ones(len(values_N), dtype=np.bool_)
    for rows in members(rewards.groups_N):
        group = rewards.totals_N[rows]
        middle = lower_median(group)
        away = group - middle
        spread = lower_median(np.abs(away))
        found = np.clip(
            away / (spread + MAD_EPSILON if spread else 1.0), -options.bound, options.bound
        )
        if options.rescale and found.any():
            found = found * len(found) / np.count_nonzero(found)
        values_N[rows] = found
        keep_N[np.flatnonzero(rows)[np.argmax(group == middle)]] = False
    return Advantages(values_N, keep_N=keep_N)


def lower_median(values: Floats) -> float:
    """The middle value, the lower one of two."""
    return float(np.sort(values)[(len(values) - 1) // 2])


MC_GRPO = Rule(
    "mc_grpo",
    "advantage",
    "MC-GRPO, method section; scale where the MAD is 0: ours",
    mc_grpo,
    MedianScale,
    needs=frozenset({Need.GROUP}),
)


SCOPES = ("group", "batch")
CENTRES = ("mean", "median")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The scope and the form of the baseline."""

    scope: str = "group"
    """Trajectories of one `group`, or of the whole `batch`."""
    centre: str = "mean"
    """Weighted `mean` or `median`; the median is robust to one trajectory with a huge gradient."""
    over_length: bool = False
    """Divide weights by the square of the length, so that long answers do not set the baseline."""
    over_std: bool = False
    """Divide advantages by the standard deviation of the rewards."""

    def __post_init__(self) -> None:
        require("scope", self.scope, self.scope in SCOPES, f"use one of {', '.join(SCOPES)}")
        require("centre", self.centre, self.centre in CENTRES, f"use one of {', '.join(CENTRES)}")

    @property
    def needs(self) -> frozenset[Need]:
        """The set of trajectories that each one is compared with."""
        return frozenset({Need(self.scope)})


def opob(rewards: Rewards, options: Baseline) -> Floats:
    """A_i = R_i − b, b = Σ w_i²·‖∇log π(τ_i)‖²·R_i / Σ w_i²·‖∇log π(τ_i)‖².

    w_i = π(τ_i)/μ(τ_i) at the step's start, uncapped; where all weights are 0, b is the plain mean.
    Source: VCPO, optimal off-policy baseline; the median is the lower one.
    """
    logs_N = needed(rewards.log_weights_N, Need.PROX)
    norms_N = needed(rewards.gradient_norms_N, Need.NORMS)
    if options.over_length:
        norms_N = norms_N / np.maximum(rewards.lengths_N, 1) ** 2
    advantages_N = np.zeros_like(rewards.totals_N)
    for rows in _compared(rewards, options.scope):
        # A common factor of the weights changes no baseline, and the largest keeps them finite.
        weights = np.exp(2 * (logs_N[rows] - logs_N[rows].max())) * norms_N[rows]
        shifted = rewards.totals_N[rows] - rewards.totals_N[rows][0]
        centre = weighted_median if options.centre == "median" else weighted_mean
        advantages_N[rows] = shifted - centre(shifted, weights)
        if options.over_std and len(shifted) > 1:
            advantages_N[rows] /= float(shifted.std(ddof=1)) + EPSILON
    return advantages_N


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Σ w·v / Σ w; the plain mean where all weights are 0."""
    total = float(weights.sum())
    return float((weights * values).sum()) / total if total > 0 else float(values.mean())


def weighted_median(values: Floats, weights: Floats) -> float:
    """The lowest value at or below which half of the weight lies."""
    order = np.argsort(values, kind="stable")
    given = weights if weights.sum() > 0 else np.ones_like(weights)
    reached = np.cumsum(given[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _compared(rewards: Rewards, scope: str) -> list[Bools]:
    if scope == "group":
        return members(rewards.groups_N)
    return [np.ones(len(rewards.totals_N), dtype=np.bool_)]


OPOB = Rule(
    "opob",
    "advantage",
    "VCPO, optimal off-policy baseline",
    opob,
    Baseline,
    frozenset({Need.NORMS, Need.PROX}),
)


TINY = 1e-8


@dataclass(frozen=True, slots=True)
class TokenPenalty:
    """The penalty of each token for its distance from the reference."""

    beta: float = 0.0
    """The factor of the token's KL estimate, in nats; above 0 a reference model is evaluated."""
    directory: str = ""
    """Directory of the frozen model; empty: the initial policy."""

    def __post_init__(self) -> None:
        require("beta", self.beta, self.beta >= 0, "give 0 (off) or more")

    @property
    def needs(self) -> frozenset[Need]:
        """`ref`, if beta is above 0."""
        return frozenset({Need.REF}) if self.beta else frozenset()


def reinforce_pp(rewards: Rewards, options: TokenPenalty) -> Advantages:
    """A[i,t] = (ret − mean) / sqrt(var + 1e-8), ret[i,t] = R_i − β·Σ_{u≥t} kl[i,u].

    kl = μ − log π_ref of the sampled token, μ the policy that sampled it. Mean and var are over all
    sampled tokens of the batch; the sum runs over the turns of a trajectory without a reset.
    Source: REINFORCE++, arXiv 2501.03262, §3. Raises Refused without the KL that β asks for.
    """
    totals_N = rewards.totals_N - rewards.totals_N[0]
    if options.beta and rewards.kl is None:
        msg = "reinforce_pp with beta above 0 needs a reference, and there is none; set beta to 0"
        raise Refused(msg)
    returns = []
    for number, length in enumerate(rewards.lengths_N):
        paid = np.zeros(length) if rewards.kl is None else options.beta * rewards.kl[number]
        returns.append(totals_N[number] - np.cumsum(paid[::-1])[::-1])
    return whitened_over_tokens(returns)


def reinforce_pp_baseline(rewards: Rewards, options: NoOptions) -> Advantages:
    """`reinforce_pp` with ret[i,t] = R_i − mean_g. Source: REINFORCE++, arXiv 2501.03262, §3."""
    del options
    centred_N = per_group(rewards, centred)
    pairs = zip(centred_N, rewards.lengths_N, strict=True)
    return whitened_over_tokens([np.full(length, each) for each, length in pairs])


def whitened_over_tokens(returns: list[Floats]) -> Advantages:
    """(ret − mean) / sqrt(var + 1e-8) over the tokens of all trajectories; var divides by n − 1."""
    every = np.concatenate(returns)
    scale = float(np.sqrt(every.var(ddof=1) + TINY)) if len(every) > 1 else 1.0
    mean = float(every.mean())
    tokens = tuple((each - mean) / scale for each in returns)
    values_N = np.array([float(each.mean()) if len(each) else 0.0 for each in tokens])
    return Advantages(values_N, tokens)


REINFORCE_PP_SOURCE = "REINFORCE++, arXiv 2501.03262, §3"
REINFORCE_PP = Rule(
    "reinforce_pp",
    "advantage",
    REINFORCE_PP_SOURCE,
    reinforce_pp,
    TokenPenalty,
    needs=frozenset({Need.BATCH}),
)
REINFORCE_PP_BASELINE = Rule(
    "reinforce_pp_baseline",
    "advantage",
    REINFORCE_PP_SOURCE,
    reinforce_pp_baseline,
    needs=frozenset({Need.BATCH, Need.GROUP}),
)
