"""The chain of starts of one journal partition: which request is the next that may start.

A request is named by the id of its topic, the leader epoch that wrote it, and its offset. Offsets
alone do not tell whether it was started: the requests' log may have been cut and have grown again,
or have been made anew under its name.
"""

from dataclasses import dataclass

from schemas.messages import NO_EPOCH, RolloutRefused, RolloutStarted

Start = RolloutStarted | RolloutRefused
STARTED_BEFORE = "started_before"
"""Reason of a start that does not count: its request has been started, or is of a log that is
gone."""
START_AFTER_GAP = "start_after_gap"
"""Reason of a start that does not count: requests before its own were never started."""
MOST_LEFT = 8
"""Ids that are remembered of topics which were made anew."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The last request that was started."""

    last: int | None = None
    """Its offset; None where none has been counted."""
    epoch: int = NO_EPOCH
    requests: str = ""
    """The id of its topic, empty where no start has told it."""
    left: tuple[str, ...] = ()
    """Ids of topics that were there before, the latest first."""

    def breaks(self, start: Start) -> str:
        """Why a start does not count, empty where it does."""
        if self.started(start.requests_id, start.request_epoch, start.request_offset):
            return STARTED_BEFORE
        same_log = self.last is not None and not self._made_anew(start.requests_id)
        if same_log and self.last is not None and start.from_offset > self.last + 1:
            return START_AFTER_GAP
        return ""

    def started(self, requests_id: str, epoch: int, offset: int) -> bool:
        """Whether no start of a request can count any more."""
        if requests_id and requests_id in self.left:
            return True
        if self.last is None or self._made_anew(requests_id):
            return False
        if NO_EPOCH in (epoch, self.epoch) or epoch == self.epoch:
            return offset <= self.last
        return epoch < self.epoch

    def _made_anew(self, requests_id: str) -> bool:
        return "" not in (requests_id, self.requests) and requests_id != self.requests

    def then(self, start: Start) -> "Chain":
        """The chain behind a start that counts."""
        requests, left = start.requests_id or self.requests, self.left
        if self._made_anew(requests):
            left = (self.requests, *left)[:MOST_LEFT]
        return Chain(start.request_offset, start.request_epoch, requests, left)
