"""Facts of the journal about rollouts of all partitions: what is joined with other topics.

The second starts of one rollout are found here, as they may be in two partitions.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.recent_requests import WINDOW
from rollcall.consumers.audit.columns import TopicPlace, Words, firsts, sort_together, unpack_place
from rollcall.consumers.audit.ends import RolloutEnds
from rollcall.consumers.audit.implied import ImpliedCommands
from rollcall.consumers.audit.quota_use import QuotaUse
from rollcall.consumers.audit.report import Report
from rollcall.consumers.audit.window import AuditWindow, Horizons
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import RolloutStarted
from rollcall.schemas.topics import Topics

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


@dataclass(eq=False)
class RolloutFacts:
    """The facts that all journal partitions add to."""

    codec: Codec
    topics: Topics
    world: FoldContext
    runnable: Callable[[RolloutStarted], bool]
    window: AuditWindow
    report: Report
    quotas: QuotaUse
    owners_at_work: set[str] = field(default_factory=set)
    """Names under which workers decided about rollouts."""
    minutes: set[int] = field(default_factory=set)
    """The times of these decisions, in minutes since 1970."""
    strays: dict[int, int] = field(default_factory=dict)
    """Rollouts that events name while they are not open, with the first place of each."""

    def __post_init__(self) -> None:
        self.horizons = Horizons(self.window, self.topics)
        self.starts, self.ends = RolloutStarts(), RolloutEnds(self.codec, self.topics)
        self.implied = ImpliedCommands()
        self.not_run = array("Q")
