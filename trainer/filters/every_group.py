"""No filter: every group is trained on."""

from collections.abc import Sequence

from schemas.rules import NoOptions, Rule
from trainer.filters.group_filter import Filter
from trainer.samples import Sample


def every_group(samples: Sequence[Sample], options: NoOptions) -> bool:
    """Keep every group."""
    del samples, options
    return True


NONE: Rule[Filter] = Rule("none", "filters", "no filter", every_group, stage="F")
