"""The type of filter rules."""

from collections.abc import Callable
from typing import Any

Filter = Callable[..., Any]
"""A function of (samples of a complete group, options) to True if the group is trained on. Rewards
are as scored, before any shaping; a user's function without options takes the samples alone.

A filter that needs `entropy` is applied to a batch instead: (mean entropies of its turns [K],
options) to a mask of the turns that are trained on, bool [K]."""
