"""What an exploration rule that watches the policy's entropy goes by: it follows from step to step,
and a checkpoint holds it.
"""

from collections.abc import Mapping
from math import nan

import torch

from schemas.rules import Chosen
from schemas.weights import RawTensor
from trainer.rewards import Exploration
from trainer.tensors import raw_of, tensor_of

PLACE = "followed/entropy"
"""Its name among those of the optimiser's tensors: two numbers in float64."""


class EntropyControl:
    """The weight of entropies by now, and the entropy of the step before."""

    def __init__(self, rule: Chosen[Exploration], weight: float) -> None:
        self.follows = rule.needs("history")
        self._options = rule.options
        self._first = weight
        self.weight, self.entropy = weight, nan

    def after_step(self, entropy: float) -> None:
        """A step's tokens had this mean entropy, in nats."""
        if self.follows:
            self.weight, self.entropy = self._options.after(self.weight, entropy), entropy

    def state(self) -> dict[str, RawTensor]:
        """What a checkpoint has to hold; nothing where no rule asks."""
        if not self.follows:
            return {}
        return {PLACE: raw_of(torch.tensor([self.weight, self.entropy], dtype=torch.float64))}

    def load(self, state: Mapping[str, RawTensor]) -> None:
        """Become what `state` was taken of; as at the beginning where it holds nothing."""
        self.weight, self.entropy = self._first, nan
        if self.follows and PLACE in state:
            self.weight, self.entropy = tensor_of(state[PLACE]).tolist()
