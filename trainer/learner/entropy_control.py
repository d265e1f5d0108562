"""The state of an exploration rule that follows the policy's entropy from step to step; it is
kept in checkpoints.
"""

from collections.abc import Mapping
from math import nan

import torch

from rollcall.schemas.rules import ChosenRule, Need
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.rules.rewards import Exploration
from rollcall.trainer.weights.tensors import raw_of, tensor_of

PLACE = "followed/entropy"
"""The name of its tensor among those of the optimiser: two numbers in float64."""


class EntropyControl:
    """The current entropy coefficient, and the entropy of the previous step."""

    def __init__(self, rule: ChosenRule[Exploration], weight: float) -> None:
        self.follows = rule.needs(Need.HISTORY)
        self._options = rule.options
        self._first = weight
        self.weight, self.entropy = weight, nan

    def after_step(self, entropy: float) -> None:
        """Update the coefficient from the mean entropy of a step's tokens, in nats."""
        if self.follows:
            self.weight, self.entropy = self._options.after(self.weight, entropy), entropy

    def state(self) -> dict[str, RawTensor]:
        """Return the state for a checkpoint; empty if no rule uses it."""
        if not self.follows:
            return {}
        return {PLACE: raw_of(torch.tensor([self.weight, self.entropy], dtype=torch.float64))}

    def load(self, state: Mapping[str, RawTensor]) -> None:
        """Restore from `state`; reset to the initial values if it is absent."""
        self.weight, self.entropy = self._first, nan
        if self.follows and PLACE in state:
            self.weight, self.entropy = tensor_of(state[PLACE]).tolist()
