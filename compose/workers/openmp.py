"""The waiting of OpenMP's threads: a setting that is read when torch is imported."""

import os

SETTING = {"GOMP_SPINCOUNT": "10000"}
"""A spin of some 30 us: longer than most waits within a step, so these do not get slower."""


def share_cores() -> None:
    """Have waiting threads of GNU's OpenMP sleep after a short spin, unless already set otherwise.

    By default they spin for milliseconds. If another task, such as saving the step before, takes
    one thread's core, the other threads then waste their cores spinning for it; asleep, they free
    them. Source: libgomp's manual, GOMP_SPINCOUNT.
    """
    for name, value in SETTING.items():
        os.environ.setdefault(name, value)
