"""No correction: every weight is 1."""

from torch import Tensor, ones_like

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Tokens


def no_correction(tokens: Tokens, options: NoOptions) -> Tensor:
    """w = 1, [B,T]. Ours."""
    del options
    return ones_like(tokens.mu_BT)


NO_CORRECTION = Rule("none", "correction", "ours", no_correction)
