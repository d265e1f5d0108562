"""Batches of a number of sampled tokens: fewer groups where rollouts are long."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.completion.waiting import Completion, Waiting


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget Φ; the run's `max_running` is Ω, and the learner's `retention` σ."""

    tokens: int = 16384
    """Sampled tokens of members that are trained on."""

    def __post_init__(self) -> None:
        require("tokens", self.tokens, self.tokens >= 1, "give at least 1")


def token_budget(waiting: Waiting, options: Budget) -> int:
    """The smallest n with Σ_{i ≤ n} tokens_i ≥ Φ; all groups once the buffer is full.

    At most Ω rollouts are in flight, and each that ends makes room for another. Rollouts that run
    when a batch is complete are cancelled and continued in the next round, and dropped as
    `retention` after more than σ continuations. Source: C3PO++, token-budgeted rollouts.
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
