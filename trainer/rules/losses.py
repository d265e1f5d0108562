"""Losses: an objective J per token, to be maximised.

- `policy_gradient`: the plain score-function estimator.
- `ppo_clip`, `clip_higher`: PPO's clipped surrogate, with equal or unequal ranges. Beyond the clip
  range a token gets no gradient.
- `gspo`: group sequence policy optimisation: one ratio for a whole sequence.
- `cispo`: clipped importance sampling: the weight is bounded, and every token keeps a gradient.
- `decoupled_ppo`: a trust region around the policy at the step's start, for older data.
- `m2po`: clipping by a bound on the second moment of a step's log-ratios.
- `topr`: tapered REINFORCE: tokens with A ≤ 0 are weighted by their ratio, at most 1.
- `soft_gate`: a smooth gate in place of a hard clip.
- `ppo_ewma`: a trust region around a moving average of the weights.
"""

from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt

import torch
from torch import Tensor, full_like

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.tokens import (
    LOG_RATIO_LIMIT,
    Costs,
    StepTokens,
    Tokens,
    log_ratio,
    needed,
    nothing_clipped,
    sampled_mean,
)


@dataclass(frozen=True, slots=True)
class Decay:
    """The decay d of the average: 0.889 has its centre of mass 8 updates back."""

    decay: float = 0.889

    def __post_init__(self) -> None:
        require("decay", self.decay, 0 < self.decay < 1, "give a number between 0 and 1")


@dataclass(frozen=True, slots=True)
class Clip:
    """The range [1 − low, 1 + high]; `dual` > 1 bounds the loss where A < 0, 0 is off."""

    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0

    def __post_init__(self) -> None:
        require("low", self.low, 0 <= self.low <= 1, "give a number in [0, 1]")
        require("high", self.high, self.high >= 0, "give a number of at least 0")
        dual = self.dual == 0 or self.dual > 1
        require("dual", self.dual, dual, "give 0 (off) or a number above 1, such as 3")


def clipped_surrogate(ratio_BT: Tensor, advantage_BT: Tensor, clip: Clip) -> Costs:
    """−min(r·A, clip(r)·A), bounded below by c·A where A < 0 if there is a dual clip c."""
    free_BT = ratio_BT * advantage_BT
    bound_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantage_BT
    gain_BT = free_BT.minimum(bound_BT)
    clipped_BT = bound_BT < free_BT
    if clip.dual:
        floor_BT = (clip.dual * advantage_BT).where(advantage_BT < 0, -inf)
        clipped_BT = clipped_BT | (gain_BT < floor_BT)
        gain_BT = gain_BT.maximum(floor_BT)
    return Costs(-gain_BT, ratio_BT, clipped_BT)


def policy_gradient(tokens: Tokens, options: NoOptions) -> Costs:
    """J = A·lp, unbiased only on-policy or with a correction.

    Source: REINFORCE, Williams 1992, §4.
    """
    del options
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    return Costs(-tokens.advantage_BT * tokens.lp_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


POLICY_GRADIENT = Rule("policy_gradient", "loss", "REINFORCE, Williams 1992, §4", policy_gradient)


@dataclass(frozen=True, slots=True)
class ClipHigher(Clip):
    """A clip range with more room upwards, so that rare tokens can gain probability."""

    high: float = 0.28


def ppo_clip(tokens: Tokens, clip: Clip) -> Costs:
    """J = min(r·A, clip(r, 1−ε_lo, 1+ε_hi)·A); with dual c and A < 0: J ← max(J, c·A).

    Source: PPO, arXiv 1707.06347, eq. 7; unequal ranges: DAPO, arXiv 2503.14476, §3.1; dual clip:
    arXiv 1912.09729, §4.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, clip)


PPO_CLIP = Rule("ppo_clip", "loss", "PPO, arXiv 1707.06347, eq. 7", ppo_clip, Clip)
CLIP_HIGHER = Rule("clip_higher", "loss", "DAPO, arXiv 2503.14476, §3.1", ppo_clip, ClipHigher)


@dataclass(frozen=True, slots=True)
class SequenceClip(Clip):
    """The clip range of a mean over tokens, which is narrow."""

    low: float = 3e-4
    high: float = 4e-4


def gspo(tokens: Tokens, clip: Clip) -> Costs:
    """J_i = min(s_i·A, clip(s_i)·A), s_i = exp((1/n_i) Σ_t m·(lp − old)), in the token form
    s_i·exp(lp − sg[lp]), so that each token carries the sequence's ratio and its own gradient.

    One row is one sequence: a trajectory of several has one ratio for each. A gradient only
    flows where the whole sequence is inside the clip. Source: GSPO, arXiv 2507.18071, §4.1-4.3.
    """
    lp_BT = tokens.lp_BT
    log_s_B1 = sampled_mean(log_ratio(lp_BT, tokens.old_BT), tokens.mask_BT)
    ratio_BT = (log_s_B1.detach() + lp_BT - lp_BT.detach()).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, clip)


GSPO = Rule(
    "gspo",
    "loss",
    "GSPO, arXiv 2507.18071, §4.1-4.3",
    gspo,
    SequenceClip,
    needs=frozenset({Need.SEQUENCE}),
    aggregate="seq_mean_token_mean",
)


@dataclass(frozen=True, slots=True)
class Truncation:
    """Bounds [1 − low, 1 + high] of the ratio as a weight; `low` 1 is no lower bound."""

    low: float = 1.0
    high: float = 0.28

    def __post_init__(self) -> None:
        require("low", self.low, 0 <= self.low <= 1, "give a number in [0, 1]")
        require("high", self.high, self.high >= 0, "give a number of at least 0")


def cispo(tokens: Tokens, bounds: Truncation) -> Costs:
    """J = sg[clip(r, 1−ε_lo, 1+ε_hi)]·A·lp, so that a rare token keeps the gradient that PPO drops.

    Source: MiniMax-M1, arXiv 2506.13585, §3.1, eq. 4-5; no upper bound is printed there, 0.28 is
    ours.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    weight_BT = ratio_BT.detach().clamp(1 - bounds.low, 1 + bounds.high)
    cost_BT = -weight_BT * tokens.advantage_BT * tokens.lp_BT
    return Costs(cost_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


CISPO = Rule("cispo", "loss", "MiniMax-M1, arXiv 2506.13585, §3.1", cispo, Truncation)


OVER = ("mask", "clamp", "mask_sequence")


@dataclass(frozen=True, slots=True)
class DecoupledClip(Clip):
    """A clip around `prox`, and a bound on the ratio of `prox` to the engine."""

    cap: float = 5.0
    """The largest ratio of `prox` to μ; 0 is off."""
    over: str = "mask"
    """Beyond the cap: mask or clamp the token; or mask the sequence by its geometric mean."""

    def __post_init__(self) -> None:
        Clip.__post_init__(self)
        require("cap", self.cap, self.cap == 0 or self.cap >= 1, "give 0 (off) or 1 and more")
        require("over", self.over, self.over in OVER, f"use one of {', '.join(OVER)}")


def decoupled_ppo(tokens: Tokens, clip: DecoupledClip) -> Costs:
    """J = w·min(r·A, clip(r)·A), r = exp(lp − prox), w = sg[exp(prox − μ)], no more than `cap`.

    A masked token has cost 0, and no denominator changes. Source: AReaL, arXiv 2505.24298,
    §5.2; the bound on w is from its code.
    """
    prox_BT = needed(tokens.prox_BT, Need.PROX)
    behind_BT = log_ratio(prox_BT, tokens.mu_BT)
    weight_BT = behind_BT.exp()
    masked_BT = ~tokens.mask_BT
    if clip.cap and clip.over == "clamp":
        weight_BT = weight_BT.clamp(max=clip.cap)
    elif clip.cap:
        mean = clip.over == "mask_sequence"
        far_BT = sampled_mean(behind_BT, tokens.mask_BT).exp() if mean else weight_BT
        masked_BT = masked_BT | (far_BT > clip.cap)
    costs = clipped_surrogate(log_ratio(tokens.lp_BT, prox_BT).exp(), tokens.advantage_BT, clip)
    cost_BT = (weight_BT * costs.cost_BT).masked_fill(masked_BT, 0)
    return Costs(cost_BT, costs.ratio_BT, costs.clipped_BT | masked_BT)


DECOUPLED_PPO = Rule(
    "decoupled_ppo",
    "loss",
    "AReaL, arXiv 2505.24298, §5.2",
    decoupled_ppo,
    DecoupledClip,
    frozenset({Need.PROX, Need.MU}),
)


RATIO_LEAST, RATIO_MOST = 0.05, 21.0


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """The bound on the mean of (μ − lp)² over tokens that move away from the engine."""

    threshold: float = 0.01

    def __post_init__(self) -> None:
        require("threshold", self.threshold, self.threshold > 0, "give a number above 0")


def m2po(tokens: Tokens, moment: SecondMoment) -> Costs:
    """J = min(r·A, clip(r, bounds)·A), r = exp(lp − μ), with bounds of the whole step.

    Source: Prosperity before Collapse, arXiv 2510.01161, §4; tokens are ranked among those that
    violate, and not among all as in one public code.
    """
    low, high = bounds(needed(tokens.step, Need.STEP), moment.threshold)
    ratio_BT = log_ratio(tokens.lp_BT, tokens.mu_BT).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, Clip(1 - low, high - 1))


def bounds(step: StepTokens, threshold: float) -> tuple[float, float]:
    """Return the range of the ratio without clipping: [e^−c, e^c] within [0.05, 21].

    The largest (μ − lp)² are dropped until the mean of the rest is below the threshold, but at
    least one is kept; c² is the largest kept. Tokens whose ratio moves against their advantage do
    not count.
    """
    apart_K = step.lp_K - step.mu_K
    squares = apart_K[apart_K * step.advantage_K > 0].square().sort().values
    counts = torch.arange(1, len(squares) + 1, dtype=squares.dtype)
    means = squares.cumsum(0) / counts
    if not len(squares) or means[-1] <= threshold:
        return RATIO_LEAST, RATIO_MOST
    kept = max(int((means < threshold).sum()), 1)
    c = min(sqrt(float(squares[kept - 1])), 20.0)
    return max(exp(-c), RATIO_LEAST), min(exp(c), RATIO_MOST)


M2PO = Rule(
    "m2po",
    "loss",
    "Prosperity before Collapse, arXiv 2510.01161, §4",
    m2po,
    SecondMoment,
    frozenset({Need.STEP, Need.MU}),
)


def topr(tokens: Tokens, options: NoOptions) -> Costs:
    """J = A·lp where A > 0, else J = sg[min(r, 1)]·A·lp.

    Source: Tapered Off-Policy REINFORCE, arXiv 2503.14286, §3. The sign is that of the
    advantage, the reward less its baseline; the paper's ratio is per trajectory, ours per token, as
    in ROLL.
    """
    del options
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    raised_BT = tokens.advantage_BT > 0
    weight_BT = ratio_BT.detach().clamp(max=1).masked_fill(raised_BT, 1)
    cost_BT = -weight_BT * tokens.advantage_BT * tokens.lp_BT
    return Costs(cost_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


TOPR = Rule("topr", "loss", "Tapered Off-Policy REINFORCE, arXiv 2503.14286, §3", topr)


@dataclass(frozen=True, slots=True)
class Gates:
    """Temperatures τ of the gate, for A > 0 and for the rest; a higher τ closes it earlier."""

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        for key in ("tau_positive", "tau_negative"):
            require(key, getattr(self, key), getattr(self, key) > 0, "give a number above 0")


def soft_gate(tokens: Tokens, gates: Gates) -> Costs:
    """J = (4/τ)·σ(τ·(r − 1))·A, whose gradient at r = 1 is A. Use it with a mean over sequences.

    Source: Soft Adaptive Policy Optimization, arXiv 2511.20347, §3.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    rising_BT = tokens.advantage_BT > 0
    tau_BT = full_like(ratio_BT, gates.tau_negative).masked_fill(rising_BT, gates.tau_positive)
    gain_BT = 4 / tau_BT * (tau_BT * (ratio_BT - 1)).sigmoid() * tokens.advantage_BT
    return Costs(-gain_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


SOFT_GATE = Rule(
    "soft_gate", "loss", "Soft Adaptive Policy Optimization, arXiv 2511.20347, §3", soft_gate, Gates
)


@dataclass(frozen=True, slots=True)
class AverageClip(Decay):
    """The clip range around the average; the ratio to the engine is at most `cap`."""

    low: float = 0.2
    high: float = 0.2
    cap: float = 100.0

    def __post_init__(self) -> None:
        Decay.__post_init__(self)
        require("low", self.low, 0 <= self.low < 1, "give a number in [0, 1)")
        require("high", self.high, self.high >= 0, "give a number of at least 0")
        require("cap", self.cap, self.cap >= 1, "give 1 or more, such as 100")


def ppo_ewma(tokens: Tokens, clip: AverageClip) -> Costs:
    """J = min(A·exp(lp − μ'), A·exp(clip(lp − E, ln(1−ε_lo), ln(1+ε_hi)) + E − μ')).

    E = log π_θ̄ and μ' = max(μ, sg[lp] − ln c). Source: Batch size-invariance for policy
    optimization, arXiv 2110.00641, §3, and its code.
    """
    lp_BT, ewma_BT = tokens.lp_BT, needed(tokens.ewma_BT, Need.EWMA)
    base_BT = tokens.mu_BT.maximum(lp_BT.detach() - log(clip.cap))
    ratio_BT = (lp_BT - base_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    low = log1p(-clip.low)
    near_BT = (lp_BT - ewma_BT).clamp(low, log1p(clip.high)) + ewma_BT - base_BT
    free_BT = ratio_BT * tokens.advantage_BT
    bound_BT = near_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() * tokens.advantage_BT
    return Costs(-free_BT.minimum(bound_BT), ratio_BT, bound_BT < free_BT)


PPO_EWMA = Rule(
    "ppo_ewma",
    "loss",
    "Batch size-invariance, arXiv 2110.00641, §3",
    ppo_ewma,
    AverageClip,
    frozenset({Need.EWMA, Need.MU}),
)
