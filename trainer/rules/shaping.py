"""Reward shaping: changes of totals before the advantages.

Filters and evaluations use unshaped rewards.

- `no_submit`: a fixed reward for rollouts that end at a limit before they finish or submit.
- `overlong`: a growing penalty for long answers, before they are cut off.
"""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Need, Rule, require
from rollcall.trainer.rules.rewards import Floats, Rewards
from rollcall.trainer.rules.samples import LIMITS


@dataclass(frozen=True, slots=True)
class Unsubmitted:
    reward: float = -0.5


def no_submit(rewards: Rewards, options: Unsubmitted) -> Floats:
    """R = −0.5 where the rollout ended at a limit. Source: MegaFlow.

    If no rollout solves a task, this is the only signal and it teaches to submit always, so watch
    the share of rollouts that submit.
    """
    at_limit = np.array([end in LIMITS for end in rewards.ends], dtype=np.bool_)
    return np.where(at_limit, options.reward, rewards.totals_N)


NO_SUBMIT = Rule(
    "no_submit",
    "shaping",
    "MegaFlow",
    no_submit,
    Unsubmitted,
    needs=frozenset({Need.LIMITS}),
    stage="F",
)


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds in sampled tokens of a trajectory."""

    most: int = 20480
    cache: int = 4096
    """The number of tokens below `most` over which the penalty grows from 0 to 1."""

    def __post_init__(self) -> None:
        require(
            "cache", self.cache, 0 < self.cache <= self.most, f"give 1 to {self.most}, the most"
        )


def overlong(rewards: Rewards, options: Length) -> Floats:
    """R + 0 up to most − cache tokens, then down to −1 at `most`, and −1 beyond.

    Source: DAPO, arXiv 2503.14476, §3.4.
    """
    into_N = (options.most - options.cache - rewards.lengths_N) / options.cache
    return rewards.totals_N + np.clip(into_N, -1.0, 0.0)


OVERLONG = Rule(
    "overlong",
    "shaping",
    "DAPO, arXiv 2503.14476, §3.4",
    overlong,
    Length,
    needs=frozenset({Need.LIMITS}),
    stage="F",
)
