"""No distillation: the advantage is what the rewards say."""

from torch import Tensor

from schemas.rules import NoOptions, Rule
from trainer.tokens import Tokens


def no_teacher(tokens: Tokens, options: NoOptions) -> Tensor:
    """A_t as it is, [B,T]."""
    return tokens.advantage_BT


NO_TEACHER = Rule("none", "distill", "ours", no_teacher)
