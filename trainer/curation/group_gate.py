"""The gate for complete groups: it rejects those that a filter rejects, with rare exceptions."""

from collections.abc import Sequence

from rollcall.schemas.rules import ChosenRule, Need, choose
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.rules.catalogue import FILTERS
from rollcall.trainer.rules.filters import Filter
from rollcall.trainer.rules.samples import Sample

FORCE_AFTER = 256
"""The number of rejected groups in a row after which one passes, so that training goes on."""


class GroupGate:
    """The filters of a run, and the reason if one was overruled."""

    def __init__(self, curation: Curation) -> None:
        self._filters = group_filters(curation)
        self._filtered_in_a_row = 0
        self._force, self._forced = "", ""

    def rejected_by(self, samples: Sequence[Sample]) -> str:
        """Return the name of the filter that rejects a group; empty if it is trained on."""
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
        """Let the next group pass, even if a filter rejects it."""
        self._force = why

    def forced(self) -> str:
        """Return why a filter was overruled since the last call; empty if none was."""
        forced, self._forced = self._forced, ""
        return forced


def group_filters(curation: Curation) -> list[ChosenRule[Filter]]:
    """Return the filters that select groups; the others select turns of a batch."""
    chosen = [choose("filters", each, FILTERS) for each in curation.filters]
    return [each for each in chosen if not each.needs(Need.ENTROPY)]


def worth_training(filters: Sequence[ChosenRule[Filter]], samples: Sequence[Sample]) -> bool:
    """Return True if no filter rejects a group."""
    return all(each(samples) for each in filters)
