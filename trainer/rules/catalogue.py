"""The tables of rules that a learner's configuration chooses by name, one per kind."""

from collections.abc import Mapping
from typing import Any

from rollcall.schemas.rules import Rule, table
from rollcall.trainer.rules.advantages import (
    BATCH_NORMALISED,
    DR_GRPO,
    GDPO,
    GRPO,
    MC_GRPO,
    OPOB,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    RLOO,
    SUCCESS_WEIGHTED,
)
from rollcall.trainer.rules.aggregates import AGGREGATES
from rollcall.trainer.rules.completion import GROUPS, TOKEN_BUDGET, Completion
from rollcall.trainer.rules.corrections import ICEPOP, MIS, NO_CORRECTION, TIS
from rollcall.trainer.rules.distillation import NO_TEACHER, REVERSE_KL
from rollcall.trainer.rules.exploration import ENTROPY_TARGET, EVEN, EXPLORE_FAILED, UNIFORM_KL
from rollcall.trainer.rules.filters import HIGH_ENTROPY, NONE, ZERO_VARIANCE, Filter
from rollcall.trainer.rules.kl import K1, K2, K3, NO_REFERENCE
from rollcall.trainer.rules.losses import (
    CISPO,
    CLIP_HIGHER,
    DECOUPLED_PPO,
    GSPO,
    M2PO,
    POLICY_GRADIENT,
    PPO_CLIP,
    PPO_EWMA,
    SOFT_GATE,
    TOPR,
)
from rollcall.trainer.rules.old_logprobs import (
    AS_REPORTED,
    EWMA,
    INTERRUPT,
    LOGLINEAR,
    RECOMPUTE,
    SNAPSHOT,
)
from rollcall.trainer.rules.rewards import AdvantageRule, Exploration, Shaping
from rollcall.trainer.rules.schedules import SCHEDULES
from rollcall.trainer.rules.shaping import NO_SUBMIT, OVERLONG
from rollcall.trainer.rules.step_sizes import ESS, SCHEDULED, StepSize
from rollcall.trainer.rules.tokens import Correction, Distil, KlEstimate, Loss, OldLogprobs

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
