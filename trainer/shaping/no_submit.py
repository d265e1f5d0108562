"""A fixed reward for rollouts that end at a limit before they finish or submit."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule
from rollcall.trainer.rewards import Floats, Rewards
from rollcall.trainer.samples import LIMITS


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
    "no_submit", "shaping", "MegaFlow", no_submit, Unsubmitted,
    needs=frozenset({"limits"}), stage="F",
)  # fmt: skip
