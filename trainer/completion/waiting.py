"""What a rule sees of the groups that wait to be trained on."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """Groups that are complete, in the order in which they would be taken."""

    tokens: tuple[int, ...]
    """Of each how many the policy sampled in the members that would be trained on."""
    wanted: int
    """`groups_per_step`, less those that are trained on again."""
    capacity: int
    """So many may wait: nothing more is read then, so that no rule may ask for more."""


Completion = Callable[..., int]
"""(waiting, options) to how many of these groups are a whole batch now; 0 while none is.

A function of what it sees: a trainer that begins again reads the same groups and comes to the same
batches."""
