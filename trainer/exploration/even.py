"""The same entropy bonus for all trajectories."""

import numpy as np

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.rewards import Floats, Rewards


def even(rewards: Rewards, entropy: float, options: NoOptions) -> Floats:
    """c_i = c. Source: entropy regularisation, Williams and Peng 1991."""
    del options
    return np.full(len(rewards.totals_N), entropy)


EVEN = Rule("even", "exploration", "Williams and Peng 1991", even)
