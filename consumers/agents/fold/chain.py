"""The chain of starts of one journal partition: decides which request may start next.

A request is identified by the id of its topic, the leader epoch that wrote it, and its offset. The
offset alone does not tell whether it was started: the requests' log may have been truncated and
have grown again, or its topic may have been recreated under the same name.
"""

from dataclasses import dataclass

from rollcall.schemas.messages import NO_EPOCH, RolloutRefused, RolloutStarted

Start = RolloutStarted | RolloutRefused
STARTED_BEFORE = "started_before"
"""The reason of a start that does not count: its request was started before, or belongs to a
log that no longer exists."""
START_AFTER_GAP = "start_after_gap"
"""The reason of a start that does not count: earlier requests were never started."""
MOST_LEFT = 8
"""The number of remembered ids of earlier incarnations of the topic."""


@dataclass(frozen=True, slots=True)
class StartChain:
    """The last request that was started."""

    last: int | None = None
    """Its offset; None if no start has counted."""
    epoch: int = NO_EPOCH
    requests: str = ""
    """The id of its topic, empty if no start has stated it."""
    left: tuple[str, ...] = ()
    """Ids of earlier incarnations of the topic, the latest first."""

    def breaks(self, start: Start) -> str:
        """Return the reason why a start does not count, empty if it does."""
        if self.started(start.requests_id, start.request_epoch, start.request_offset):
            return STARTED_BEFORE
        same_log = self.last is not None and not self._made_anew(start.requests_id)
        if same_log and self.last is not None and start.from_offset > self.last + 1:
            return START_AFTER_GAP
        return ""

    def started(self, requests_id: str, epoch: int, offset: int) -> bool:
        """Return True if no further start of a request can count."""
        if requests_id and requests_id in self.left:
            return True
        if self.last is None or self._made_anew(requests_id):
            return False
        # Without an epoch only offsets can be compared.
        if NO_EPOCH in (epoch, self.epoch) or epoch == self.epoch:
            return offset <= self.last
        # A later leader's log may have been cut below the last start and grown again.
        return epoch < self.epoch

    def _made_anew(self, requests_id: str) -> bool:
        return "" not in (requests_id, self.requests) and requests_id != self.requests

    def then(self, start: Start) -> "StartChain":
        """Return the chain after a start that counts."""
        requests, left = start.requests_id or self.requests, self.left
        if self._made_anew(requests):
            left = (self.requests, *left)[:MOST_LEFT]
        return StartChain(start.request_offset, start.request_epoch, requests, left)
