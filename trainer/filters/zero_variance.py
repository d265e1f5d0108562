"""A filter of groups with equal rewards, whose advantages are all 0."""

from collections.abc import Sequence

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.filters.group_filter import Filter
from rollcall.trainer.samples import Sample

SOURCE = "DAPO, arXiv 2503.14476, §3.2"


def zero_variance(samples: Sequence[Sample], options: NoOptions) -> bool:
    """Keep if max R − min R > 1e-8. P(kept) = 1 − p^G − (1 − p)^G where p is the success rate.

    Source: DAPO, arXiv 2503.14476, §3.2 (dynamic sampling).
    """
    del options
    rewards = [sample.reward for sample in samples]
    return max(rewards) - min(rewards) > 1e-8


ZERO_VARIANCE: Rule[Filter] = Rule(
    "zero_variance", "filters", SOURCE, zero_variance, needs=frozenset({"group"}), stage="F"
)
