"""The clipped surrogate: beyond the clip range a token gets no gradient."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from rollcall.schemas.rules import require
from rollcall.trainer.tokens import Costs


@dataclass(frozen=True, slots=True)
class Clip:
    """The range [1 − low, 1 + high]; `dual` > 1 bounds the loss where A < 0, 0 is off."""

    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0

    def __post_init__(self) -> None:
        require("low", self.low, 0 <= self.low <= 1, "give a number in [0, 1]")
        require("high", self.high, self.high >= 0, "give a number of at least 0")
        dual = self.dual == 0 or self.dual > 1
        require("dual", self.dual, dual, "give 0 (off) or a number above 1, such as 3")


def clipped_surrogate(ratio_BT: Tensor, advantage_BT: Tensor, clip: Clip) -> Costs:
    """−min(r·A, clip(r)·A), bounded below by c·A where A < 0 if there is a dual clip c."""
    free_BT = ratio_BT * advantage_BT
    bound_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantage_BT
    gain_BT = free_BT.minimum(bound_BT)
    clipped_BT = bound_BT < free_BT
    if clip.dual:
        floor_BT = (clip.dual * advantage_BT).where(advantage_BT < 0, -inf)
        clipped_BT = clipped_BT | (gain_BT < floor_BT)
        gain_BT = gain_BT.maximum(floor_BT)
    return Costs(-gain_BT, ratio_BT, clipped_BT)
