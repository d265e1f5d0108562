"""The input of a completion rule: the groups that wait to be trained on."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """The complete groups, in the order in which they would be taken."""

    tokens: tuple[int, ...]
    """Sampled tokens of each group, in the members that would be trained on."""
    wanted: int
    """`groups_per_step`, less the replayed groups and those of other runs."""
    capacity: int
    """The most groups that may wait. Reading pauses then, so a rule must not ask for more."""


Completion = Callable[..., int]
"""A function of (waiting, options) to the number of groups in a batch now; 0 if incomplete.

It must be deterministic: a restarted trainer reads the same groups and forms the same batches."""
