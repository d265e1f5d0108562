"""Distillation rules: terms of a teacher added to the advantage.

- `none`: advantages come from rewards only.
- `reverse_kl`: on-policy distillation: the student samples, and a teacher scores its tokens.
"""

from dataclasses import dataclass

from torch import Tensor, isnan

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.teacher_scores import TEACHER
from rollcall.trainer.rules.tokens import Tokens


def no_teacher(tokens: Tokens, options: NoOptions) -> Tensor:
    """A_t unchanged, [B,T]."""
    return tokens.advantage_BT


NO_TEACHER = Rule("none", "distill", "ours", no_teacher)


@dataclass(frozen=True, slots=True)
class ReverseKl:
    """`weight` is λ: 1 without another reward, small (such as 0.005) beside a reward."""

    weight: float = 1.0
    alone: bool = False
    """True: learn from the teacher only, A = 0 whatever the reward."""
    only_failed: bool = False
    """True: guide only rollouts with a reward below `solved_at`; guiding solved ones adds noise."""
    solved_at: float = 1.0
    scorer: str = TEACHER
    """The prefix of the scorer's name; the first match is used."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight > 0, "give a number above 0, such as 1")
        require("scorer", self.scorer, bool(self.scorer), "name the scorer, such as 'teacher:'")


def reverse_kl(tokens: Tokens, options: ReverseKl) -> Tensor:
    """A_t ← A_t − λ·sg[lp_student − lp_teacher], [B,T]; A_t where the teacher gave none.

    Source: On-Policy Distillation of Language Models (GKD), arXiv 2306.13649, §3, with the reverse
    KL on the student's own tokens as a term of their advantage.
    """
    advantage_BT = tokens.advantage_BT * (not options.alone)
    if tokens.teacher_BT is None:
        return advantage_BT
    guided_BT = tokens.mask_BT & ~isnan(tokens.teacher_BT)
    if options.only_failed:
        guided_BT = guided_BT & (tokens.reward_B < options.solved_at)[:, None]
    gap_BT = tokens.lp_BT.detach() - tokens.teacher_BT
    return (advantage_BT - options.weight * gap_BT).where(guided_BT, advantage_BT)


SOURCE = "GKD, arXiv 2306.13649, §3"
REVERSE_KL = Rule("reverse_kl", "distill", SOURCE, reverse_kl, ReverseKl, frozenset({Need.TEACHER}))
