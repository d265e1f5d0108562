"""The result of a benchmark, and the clocks for it."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rollcall.schemas.errors import RollcallError

T = TypeVar("T")


class BenchmarkUnavailable(RollcallError):
    """A requirement of a figure is missing here; the message names it, and how to get it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and the best that this machine could do, measured in the same run."""

    value: float
    unit: str
    ceiling: float
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()
    """Remarks on the parts of the value."""

    @property
    def ratio(self) -> float:
        """Return the ratio of value and ceiling; 1 means that the ceiling is reached."""
        best, worst = (
            (self.ceiling, self.value) if self.lower_is_better else (self.value, self.ceiling)
        )
        return best / worst if worst else 0.0


def cpu_used_s() -> float:
    """Return the CPU seconds of this process and of its reaped descendants."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Call a function; return its seconds of wall time, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
