"""The starts of all rollouts, and the second starts among them."""

from array import array
from dataclasses import dataclass

import numpy as np

from rollcall.consumers.agents.recent_requests import WINDOW
from rollcall.consumers.audit.columns import TopicPlace, Words, firsts, sort_together, unpack_place

REFUSED = (1 << 64) - 1
"""Replaces the request's offset for a start that was refused at once, and so runs nothing."""


@dataclass(frozen=True, slots=True)
class SecondStart:
    """A second start of a rollout."""

    owner: int
    before: TopicPlace
    """The place of the first start in the journal."""
    here: TopicPlace


class RolloutStarts:
    """One row for each start that counts."""

    def __init__(self) -> None:
        self.owners: Words
        """Sorted, once the journal is read."""
        self.second: dict[TopicPlace, SecondStart] = {}
        """Second starts, by partition and offset of the request."""
        self._columns = array("Q"), array("Q"), array("Q")

    def note(self, owner: int, at: int, request_offset: int) -> None:
        """Note a start: the rollout, its place in the journal, and the offset of its request."""
        for column, word in zip(self._columns, (owner, at, request_offset), strict=True):
            column.append(word)

    def close(self) -> None:
        """Sort, and find second starts within the range in which a worker refuses them."""
        owners, places, requests = sort_together(*self._columns)
        for row in np.flatnonzero(~firsts(owners)).tolist():
            if REFUSED in (requests[row], requests[row - 1]):
                continue
            before, here = unpack_place(int(places[row - 1])), unpack_place(int(places[row]))
            request, far = int(requests[row]), int(requests[row]) - int(requests[row - 1])
            if here[0] != before[0] or far <= WINDOW:
                self.second[here[0], request] = SecondStart(int(owners[row]), before, here)
        self.owners = owners
