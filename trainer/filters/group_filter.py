"""What a filter is."""

from collections.abc import Callable

Filter = Callable[..., bool]
"""(samples of a whole group, options) to whether it is worth training on. Rewards are as scored,
before any shaping; a user's function without options takes the samples alone."""
