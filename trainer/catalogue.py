"""The tables of rules that a learner's configuration chooses by name, one per kind."""

from collections.abc import Mapping
from typing import Any

from rollcall.schemas.rules import Rule, table
from rollcall.trainer.advantages.batch_normalised import BATCH_NORMALISED
from rollcall.trainer.advantages.dr_grpo import DR_GRPO
from rollcall.trainer.advantages.gdpo import GDPO
from rollcall.trainer.advantages.grpo import GRPO
from rollcall.trainer.advantages.mc_grpo import MC_GRPO
from rollcall.trainer.advantages.opob import OPOB
from rollcall.trainer.advantages.reinforce_pp import REINFORCE_PP, REINFORCE_PP_BASELINE
from rollcall.trainer.advantages.rloo import RLOO
from rollcall.trainer.advantages.success_weighted import SUCCESS_WEIGHTED
from rollcall.trainer.aggregates import AGGREGATES
from rollcall.trainer.completion.by_groups import GROUPS
from rollcall.trainer.completion.token_budget import TOKEN_BUDGET
from rollcall.trainer.completion.waiting import Completion
from rollcall.trainer.corrections.icepop import ICEPOP
from rollcall.trainer.corrections.mis import MIS
from rollcall.trainer.corrections.no_correction import NO_CORRECTION
from rollcall.trainer.corrections.tis import TIS
from rollcall.trainer.distillation.no_teacher import NO_TEACHER
from rollcall.trainer.distillation.reverse_kl import REVERSE_KL
from rollcall.trainer.exploration.entropy_target import ENTROPY_TARGET
from rollcall.trainer.exploration.even import EVEN
from rollcall.trainer.exploration.explore_failed import EXPLORE_FAILED
from rollcall.trainer.exploration.uniform_kl import UNIFORM_KL
from rollcall.trainer.filters.every_group import NONE
from rollcall.trainer.filters.group_filter import Filter
from rollcall.trainer.filters.high_entropy import HIGH_ENTROPY
from rollcall.trainer.filters.zero_variance import ZERO_VARIANCE
from rollcall.trainer.losses.cispo import CISPO
from rollcall.trainer.losses.decoupled_ppo import DECOUPLED_PPO
from rollcall.trainer.losses.gspo import GSPO
from rollcall.trainer.losses.m2po import M2PO
from rollcall.trainer.losses.policy_gradient import POLICY_GRADIENT
from rollcall.trainer.losses.ppo_clip import CLIP_HIGHER, PPO_CLIP
from rollcall.trainer.losses.ppo_ewma import PPO_EWMA
from rollcall.trainer.losses.soft_gate import SOFT_GATE
from rollcall.trainer.losses.topr import TOPR
from rollcall.trainer.old_logprobs.as_reported import AS_REPORTED
from rollcall.trainer.old_logprobs.ewma import EWMA
from rollcall.trainer.old_logprobs.interrupt import INTERRUPT
from rollcall.trainer.old_logprobs.loglinear import LOGLINEAR
from rollcall.trainer.old_logprobs.recompute import RECOMPUTE
from rollcall.trainer.old_logprobs.snapshot import SNAPSHOT
from rollcall.trainer.references.k1 import K1
from rollcall.trainer.references.k2 import K2
from rollcall.trainer.references.k3 import K3
from rollcall.trainer.references.no_reference import NO_REFERENCE
from rollcall.trainer.rewards import AdvantageRule, Exploration, Shaping
from rollcall.trainer.schedules import SCHEDULES
from rollcall.trainer.shaping.no_submit import NO_SUBMIT
from rollcall.trainer.shaping.overlong import OVERLONG
from rollcall.trainer.step_sizes.ess import ESS
from rollcall.trainer.step_sizes.pace import StepSize
from rollcall.trainer.step_sizes.scheduled import SCHEDULED
from rollcall.trainer.tokens import Correction, Distil, KlEstimate, Loss, OldLogprobs

ADVANTAGES: Mapping[str, Rule[AdvantageRule]] = table(
    BATCH_NORMALISED,
    GRPO,
    DR_GRPO,
    RLOO,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    MC_GRPO,
    GDPO,
    OPOB,
    SUCCESS_WEIGHTED,
)
EXPLORATIONS: Mapping[str, Rule[Exploration]] = table(
    EVEN, EXPLORE_FAILED, ENTROPY_TARGET, UNIFORM_KL
)
SHAPINGS: Mapping[str, Rule[Shaping]] = table(NO_SUBMIT, OVERLONG)
DISTILS: Mapping[str, Rule[Distil]] = table(NO_TEACHER, REVERSE_KL)
LOSSES: Mapping[str, Rule[Loss]] = table(
    CLIP_HIGHER,
    POLICY_GRADIENT,
    PPO_CLIP,
    GSPO,
    CISPO,
    DECOUPLED_PPO,
    M2PO,
    TOPR,
    SOFT_GATE,
    PPO_EWMA,
)
CORRECTIONS: Mapping[str, Rule[Correction]] = table(NO_CORRECTION, TIS, ICEPOP, MIS)
KLS: Mapping[str, Rule[KlEstimate]] = table(NO_REFERENCE, K1, K2, K3)
OLDS: Mapping[str, Rule[OldLogprobs]] = table(
    AS_REPORTED, RECOMPUTE, SNAPSHOT, INTERRUPT, EWMA, LOGLINEAR
)
STEP_SIZES: Mapping[str, Rule[StepSize]] = table(SCHEDULED, ESS)

FILTERS: Mapping[str, Rule[Filter]] = table(NONE, ZERO_VARIANCE, HIGH_ENTROPY)
"""A configuration may choose several."""

COMPLETIONS: Mapping[str, Rule[Completion]] = table(GROUPS, TOKEN_BUDGET)

KINDS: Mapping[str, Mapping[str, Rule[Any]]] = {
    "batch": COMPLETIONS,
    "filters": FILTERS,
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "correction": CORRECTIONS,
    "old_logprobs": OLDS,
    "kl": KLS,
    "step_size": STEP_SIZES,
    "exploration": EXPLORATIONS,
    "shaping": SHAPINGS,
    "aggregate": AGGREGATES,
    "schedule": SCHEDULES,
    "distill": DISTILS,
}
"""By configuration key, the rules that it chooses from."""
