"""A growing penalty for long answers, before they are cut off."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.rewards import Floats, Rewards


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds in sampled tokens of a trajectory."""

    most: int = 20480
    cache: int = 4096
    """The number of tokens below `most` over which the penalty grows from 0 to 1."""

    def __post_init__(self) -> None:
        require(
            "cache", self.cache, 0 < self.cache <= self.most, f"give 1 to {self.most}, the most"
        )


def overlong(rewards: Rewards, options: Length) -> Floats:
    """R + 0 up to most − cache tokens, then down to −1 at `most`, and −1 beyond.

    Source: DAPO, arXiv 2503.14476, §3.4.
    """
    into_N = (options.most - options.cache - rewards.lengths_N) / options.cache
    return rewards.totals_N + np.clip(into_N, -1.0, 0.0)


OVERLONG = Rule(
    "overlong", "shaping", "DAPO, arXiv 2503.14476, §3.4", overlong, Length,
    needs=frozenset({"limits"}), stage="F",
)  # fmt: skip
