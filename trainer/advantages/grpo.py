"""Group-relative advantages over the group's spread."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.advantages.spread import whitened
from rollcall.trainer.rewards import Floats, Rewards, per_group


def grpo(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = (R_i − mean_g) / (std_g + 1e-4). Source: DeepSeekMath, arXiv 2402.03300, §4.1."""
    del options
    return per_group(rewards, whitened)


GRPO = Rule(
    "grpo", "advantage", "DeepSeekMath, arXiv 2402.03300, §4.1", grpo, needs=frozenset({"group"})
)
