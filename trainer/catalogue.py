"""Every rule that a learner's configuration can choose by name, by kind."""

from collections.abc import Mapping
from typing import Any

from schemas.rules import Rule, table
from trainer.advantages.batch_normalised import BATCH_NORMALISED
from trainer.advantages.dr_grpo import DR_GRPO
from trainer.advantages.grpo import GRPO
from trainer.advantages.rloo import RLOO
from trainer.aggregates import AGGREGATES
from trainer.losses.cispo import CISPO
from trainer.losses.decoupled_ppo import DECOUPLED_PPO
from trainer.losses.gspo import GSPO
from trainer.losses.m2po import M2PO
from trainer.losses.policy_gradient import POLICY_GRADIENT
from trainer.losses.ppo_clip import CLIP_HIGHER, PPO_CLIP
from trainer.losses.soft_gate import SOFT_GATE
from trainer.losses.topr import TOPR
from trainer.rewards import AdvantageRule
from trainer.schedules import SCHEDULES
from trainer.tokens import Loss

ADVANTAGES: Mapping[str, Rule[AdvantageRule]] = table(BATCH_NORMALISED, GRPO, DR_GRPO, RLOO)
LOSSES: Mapping[str, Rule[Loss]] = table(
    CLIP_HIGHER, POLICY_GRADIENT, PPO_CLIP, GSPO, CISPO, DECOUPLED_PPO, M2PO, TOPR, SOFT_GATE
)

KINDS: Mapping[str, Mapping[str, Rule[Any]]] = {
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "aggregate": AGGREGATES,
    "schedule": SCHEDULES,
}
"""The keys of a configuration that choose a rule."""
