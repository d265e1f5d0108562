"""Which whole groups are trained on: those that no filter rejects, and now and then one more."""

from collections.abc import Sequence

from schemas.rules import Chosen, choose
from trainer.catalogue import FILTERS
from trainer.filters.group_filter import Filter
from trainer.samples import Curation, Sample

FORCE_AFTER = 256
"""After so many filtered groups in a row one is let through, lest the trainer wait for ever."""


class GroupGate:
    """The filters of a run, and why one of them was overruled."""

    def __init__(self, curation: Curation) -> None:
        self._filters = group_filters(curation)
        self._filtered_in_a_row = 0
        self._force, self._forced = "", ""

    def rejected_by(self, samples: Sequence[Sample]) -> str:
        """The name of the filter that rejects a group; empty where it is trained on."""
        rejected = next((each.rule.name for each in self._filters if not each(samples)), "")
        if rejected and self._filtered_in_a_row >= FORCE_AFTER:
            self._force = f"the last {FORCE_AFTER} groups were filtered"
        if not rejected or self._force:
            self._forced = self._force if rejected else self._forced
            self._filtered_in_a_row, self._force = 0, ""
            return ""
        self._filtered_in_a_row += 1
        return rejected

    def force(self, why: str) -> None:
        """Let the next group through whatever the filters say."""
        self._force = why

    def forced(self) -> str:
        """Why a group was let through since this was last asked; empty where none was."""
        forced, self._forced = self._forced, ""
        return forced


def group_filters(curation: Curation) -> list[Chosen[Filter]]:
    """The filters that choose among groups; the others choose among the turns of a batch."""
    chosen = [choose("filters", each, FILTERS) for each in curation.filters]
    return [each for each in chosen if not each.needs("entropy")]


def worth_training(filters: Sequence[Chosen[Filter]], samples: Sequence[Sample]) -> bool:
    """Whether no filter rejects a group."""
    return all(each(samples) for each in filters)
