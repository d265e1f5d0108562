"""What a benchmark hands back."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from schemas.errors import RollcallError

T = TypeVar("T")


class LeftOut(RollcallError):
    """What a figure needs is not on this machine; the message says what, and how to have it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and the best that this machine could do, measured in the same run."""

    value: float
    unit: str
    ceiling: float
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()
    """For people: what the value was made of."""

    @property
    def ratio(self) -> float:
        """How close the value comes to its ceiling; 1 is all of it."""
        best, worst = (self.ceiling, self.value) if self.lower_is_better else (
            self.value, self.ceiling,
        )  # fmt: skip
        return best / worst if worst else 0.0


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds of wall time that one call took, and what it gave."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
