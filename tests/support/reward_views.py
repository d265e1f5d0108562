"""What an advantage rule sees, made by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollcall.schemas.rules import choose
from rollcall.trainer.rules.catalogue import ADVANTAGES
from rollcall.trainer.rules.rewards import Advantages, Floats, Rewards


def view(
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    **more: Any,
) -> Rewards:
    """Trajectories of one group and one token each unless said otherwise."""
    count = len(rewards)
    return Rewards(
        np.array(rewards, dtype=np.float64),
        np.array(groups or [0] * count, dtype=np.int64),
        np.array(lengths or [1] * count, dtype=np.int64),
        **more,
    )


def valued(rule: object, rewards: Sequence[float], *seen: Any, **more: Any) -> Advantages:
    """What a rule gives, by name or as a table with its options."""
    found = choose("advantage", rule, ADVANTAGES)(view(rewards, *seen, **more))
    return found if isinstance(found, Advantages) else Advantages(found)


def advantages(rule: object, rewards: Sequence[float], *seen: Any, **more: Any) -> Floats:
    """One number a trajectory; of a rule per token their mean."""
    return valued(rule, rewards, *seen, **more).values_N
