"""How OpenMP's threads wait for one another: a setting that is read when torch is imported."""

import os

SETTING = {"GOMP_SPINCOUNT": "10000"}
"""Some 30 us: longer than most waits within a step, which then are as short as ever."""


def share_cores() -> None:
    """Have a thread of GNU's OpenMP that waits sleep after a moment, unless the environment says
    otherwise.

    By itself it spins for milliseconds. Where something else wants a core, such as the saving of
    the step before, the one thread whose core it takes then waits for its turn, while the other
    burns its own in waiting for the first; asleep, it lends it. Source: libgomp's manual,
    GOMP_SPINCOUNT.
    """
    for name, value in SETTING.items():
        os.environ.setdefault(name, value)
