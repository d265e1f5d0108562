"""Group-relative advantages without the division that favours easy and hard tasks."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.advantages.spread import centred
from rollcall.trainer.rewards import Floats, Rewards, per_group


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
    needs=frozenset({"group"}),
    aggregate="seq_mean_token_sum_norm",
)
