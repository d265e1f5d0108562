"""No distillation: advantages come from rewards only."""

from torch import Tensor

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Tokens


def no_teacher(tokens: Tokens, options: NoOptions) -> Tensor:
    """A_t unchanged, [B,T]."""
    return tokens.advantage_BT


NO_TEACHER = Rule("none", "distill", "ours", no_teacher)
