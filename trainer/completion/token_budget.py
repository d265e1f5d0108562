"""A batch is so many tokens: what is long makes it whole sooner, and nothing waits for a count."""

from dataclasses import dataclass

import numpy as np

from schemas.rules import Rule, require
from trainer.completion.waiting import Completion, Waiting


@dataclass(frozen=True, slots=True)
class Budget:
    """Φ; the run's `max_running` is Ω, and the learner's `retention` σ."""

    tokens: int = 16384
    """Sampled ones, of members that are trained on."""

    def __post_init__(self) -> None:
        require("tokens", self.tokens, self.tokens >= 1, "give at least 1")


def token_budget(waiting: Waiting, options: Budget) -> int:
    """The smallest n with Σ_{i ≤ n} tokens_i ≥ Φ; all there are once no more may wait.

    At most Ω rollouts are in flight and each that ends makes room for another. What runs when a
    batch is whole is cancelled and gone on with in the next round, and dropped as `retention` when
    that has come more than σ times. Source: C3PO++, token-budgeted rollouts.
    """
    reached = np.flatnonzero(np.cumsum(waiting.tokens) >= options.tokens)
    if len(reached):
        return int(reached[0]) + 1
    return len(waiting.tokens) if len(waiting.tokens) >= waiting.capacity else 0


TOKEN_BUDGET: Rule[Completion] = Rule(
    "token_budget",
    "batch",
    "C3PO++, token-budgeted rollouts",
    token_budget,
    Budget,
    needs=frozenset({"cut_off"}),
    stage="C",
)
