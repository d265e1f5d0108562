"""Options that every penalty for leaving a reference has."""

from dataclasses import dataclass

from schemas.rules import require


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """`weight` times the estimate is added to each token's cost."""

    weight: float = 0.001
    directory: str = ""
    """Of the frozen model; where none is named, what the policy itself began as."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight > 0, "give a number above 0, or name = 'none'")
