"""What an advantage rule sees, made by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.rules import choose
from trainer.catalogue import ADVANTAGES
from trainer.rewards import Floats, Rewards


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


def advantages(rule: object, rewards: Sequence[float], *seen: Any, **more: Any) -> Floats:
    """Of a rule that gives one number a trajectory, by name or as a table with its options."""
    found = choose("advantage", rule, ADVANTAGES)(view(rewards, *seen, **more))
    assert isinstance(found, np.ndarray)
    return found
