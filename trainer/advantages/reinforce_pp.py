"""REINFORCE++: returns per token, whitened over all tokens of the batch."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions, Rule, require
from rollcall.trainer.advantages.spread import centred
from rollcall.trainer.rewards import Advantages, Floats, Rewards, per_group

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
    def needs(self) -> frozenset[str]:
        """`ref`, if beta is above 0."""
        return frozenset({"ref"}) if self.beta else frozenset()


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


SOURCE = "REINFORCE++, arXiv 2501.03262, §3"
REINFORCE_PP = Rule(
    "reinforce_pp", "advantage", SOURCE, reinforce_pp, TokenPenalty, needs=frozenset({"batch"})
)
REINFORCE_PP_BASELINE = Rule(
    "reinforce_pp_baseline",
    "advantage",
    SOURCE,
    reinforce_pp_baseline,
    needs=frozenset({"batch", "group"}),
)
