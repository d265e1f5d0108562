"""The starts of all rollouts: who began and where, and who was begun a second time."""

from array import array
from dataclasses import dataclass

import numpy as np

from consumers.agents.recent_requests import WINDOW
from consumers.audit.columns import TopicPlace, Words, firsts, sort_together, split

REFUSED = (1 << 64) - 1
"""Stands for the request's offset of a start that was refused at once, and so runs nothing."""


@dataclass(frozen=True, slots=True)
class SecondStart:
    """A rollout that was started once more."""

    owner: int
    before: TopicPlace
    """Where the journal says so of the first."""
    here: TopicPlace


class Starts:
    """One row for each start that counts."""

    def __init__(self) -> None:
        self.owners: Words
        """Sorted, once the journal is read."""
        self.second: dict[TopicPlace, SecondStart] = {}
        """By partition and offset of the request: starts of rollouts that were started before."""
        self._columns = array("Q"), array("Q"), array("Q")

    def note(self, owner: int, at: int, request_offset: int) -> None:
        """A rollout begins at a place of the journal, as its request at that offset asks."""
        for column, word in zip(self._columns, (owner, at, request_offset), strict=True):
            column.append(word)

    def close(self) -> None:
        """Sort; on the way, see who was started twice, within what a worker knows to refuse."""
        owners, places, requests = sort_together(*self._columns)
        for row in np.flatnonzero(~firsts(owners)).tolist():
            if REFUSED in (requests[row], requests[row - 1]):
                continue
            before, here = split(int(places[row - 1])), split(int(places[row]))
            request, far = int(requests[row]), int(requests[row]) - int(requests[row - 1])
            if here[0] != before[0] or far <= WINDOW:
                self.second[here[0], request] = SecondStart(int(owners[row]), before, here)
        self.owners = owners
