"""Faults at every place where code of ours, or of a library that it leaves the work to, calls."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

Place = tuple[str, int, str]
"""File, line, and what is called there."""


@contextmanager
def calls(files: Sequence[str], hear: Callable[[Place], None]) -> Iterator[None]:
    """Tell of every call made within these files; what `hear` raises is raised by the call."""

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        caller = frame.f_back if event == "call" else frame if event == "c_call" else None
        if caller is None or not any(part in caller.f_code.co_filename for part in files):
            return
        name = frame.f_code.co_name if event == "call" else getattr(arg, "__name__", "")
        hear((caller.f_code.co_filename, caller.f_lineno, name))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def places(files: Sequence[str], work: Callable[[], object]) -> dict[Place, int]:
    """Every place that calls while this is done, and how often."""
    found: dict[Place, int] = {}

    def hear(place: Place) -> None:
        found[place] = found.get(place, 0) + 1

    with calls(files, hear):
        work()
    return found


class Fault:
    """Raises at the n-th call from one place."""

    def __init__(self, place: Place, number: int, error: BaseException) -> None:
        self.place, self.left, self.error = place, number, error
        self.raised = False

    def __call__(self, place: Place) -> None:
        if place != self.place:
            return
        self.left -= 1
        if self.left == 0:
            self.raised = True
            raise self.error


@contextmanager
def fault(files: Sequence[str], one: Fault) -> Iterator[None]:
    """Have it happen within; an error of the fault's own ends there."""
    with suppress(type(one.error)), calls(files, one):
        yield
