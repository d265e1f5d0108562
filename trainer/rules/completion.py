"""Rules for when a batch is complete: from complete groups to a number to take.

- `groups`: a fixed number of groups.
- `token_budget`: a number of sampled tokens: fewer groups where rollouts are long.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Need, NoOptions, Rule, require


@dataclass(frozen=True, slots=True)
class Waiting:
    """The complete groups, in the order in which they would be taken."""

    tokens: tuple[int, ...]
    """Sampled tokens of each group, in the members that would be trained on."""
    wanted: int
    """`groups_per_step`, less the replayed groups and those of other runs."""
    capacity: int
    """The most groups that may wait. Reading pauses then, so a rule must not ask for more."""


Completion = Callable[..., int]
"""A function of (waiting, options) to the number of groups in a batch now; 0 if incomplete.

It must be deterministic: a restarted trainer reads the same groups and forms the same batches."""


def by_groups(waiting: Waiting, options: NoOptions) -> int:
    """n = `groups_per_step` once that many are complete. Ours."""
    del options
    return waiting.wanted if len(waiting.tokens) >= waiting.wanted else 0


GROUPS: Rule[Completion] = Rule("groups", "batch", "ours", by_groups, stage="C")


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
    needs=frozenset({Need.CUT_OFF}),
    stage="C",
)
