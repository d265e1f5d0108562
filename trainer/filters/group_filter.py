"""What a filter is."""

from collections.abc import Callable
from typing import Any

Filter = Callable[..., Any]
"""(samples of a whole group, options) to whether it is worth training on. Rewards are as scored,
before any shaping; a user's function without options takes the samples alone.

One that needs `entropy` is asked of a batch instead: (mean entropies of its turns [K], options) to
which turns are trained on, bool [K]."""
