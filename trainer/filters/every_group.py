"""No filter: every group is trained on."""

from collections.abc import Sequence

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.filters.group_filter import Filter
from rollcall.trainer.samples import Sample


def every_group(samples: Sequence[Sample], options: NoOptions) -> bool:
    """Keep every group."""
    del samples, options
    return True


NONE: Rule[Filter] = Rule("none", "filters", "no filter", every_group, stage="F")
