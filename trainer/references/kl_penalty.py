"""Options of every KL penalty."""

from dataclasses import dataclass

from rollcall.schemas.rules import require


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """Options of a penalty: `weight` times the estimate is added to each token's cost."""

    weight: float = 0.001
    directory: str = ""
    """Directory of the frozen model; empty: the initial policy."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight > 0, "give a number above 0, or name = 'none'")
