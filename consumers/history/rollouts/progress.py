"""The progress of some rollouts, followed in the journal and in scored records."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollcall.consumers.history.reading.counting import Counting
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.protocols import Reader, Record
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Event, RolloutRequest, ScoredTrajectory


@dataclass(slots=True)
class FollowedRollout:
    """The state of one rollout."""

    rollout_id: str
    counting: Counting = field(default_factory=Counting)
    started_ms: int | None = None
    scored: ScoredTrajectory | None = None
    """The first score that was written for it."""

    def take(self, event: Event, at_ms: int) -> None:
        """Take one entry of its journal, in log order."""
        was_open = self.counting.open
        counted = not self.counting.take(event)
        if counted and not was_open:
            self.started_ms = at_ms

    @property
    def status(self) -> str:
        """`requested`, `running`, `ended`, or how it ended once it is scored."""
        if self.scored is not None:
            return self.scored.trajectory.status
        if self.started_ms is None:
            return "requested"
        return "running" if self.counting.open else "ended"

    @property
    def turns(self) -> int:
        """The number of model answers in the current attempt."""
        return self.scored.trajectory.model_calls if self.scored else self.counting.turns

    @property
    def reward(self) -> str:
        """The reward as text; empty if it is not scored."""
        if self.scored is None:
            return ""
        total = self.scored.total
        return f"none: {self.scored.reason}" if total is None else f"{total:+.3f}"

    def seconds(self, now_ms: float) -> float:
        """Return its duration, or the time so far."""
        if self.scored is not None:
            trajectory = self.scored.trajectory
            return (trajectory.ended_ms - trajectory.started_ms) / 1000
        return max(0.0, now_ms - self.started_ms) / 1000 if self.started_ms is not None else 0.0


class RolloutProgress:
    """Follows rollouts from the end that the log had at construction."""

    def __init__(
        self,
        history: History,
        requests: Sequence[RolloutRequest],
        scoring_id: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.rows = {
            request.rollout_id: FollowedRollout(request.rollout_id) for request in requests
        }
        self.wall = wall
        self.scoring_id = scoring_id
        """The scoring whose scores count; empty for the first score of any."""
        self._codec = history.codec
        self._events = history.topics.events
        self._keys = {(r.group_id or r.rollout_id).encode() for r in requests}
        self._keys |= {request.rollout_id.encode() for request in requests}
        self._reader: Reader = history.log.reader(
            [self._events, history.topics.scored], from_end=True
        )

    def poll(self, timeout_s: float) -> list[FollowedRollout]:
        """Read new records; return the rollouts that were scored by them."""
        scored = []
        for record in self._reader.poll(timeout_s):
            if record.key in self._keys:
                row = self._take(record)
                scored += [row] if row else []
        return scored

    def _take(self, record: Record) -> FollowedRollout | None:
        try:
            if record.topic == self._events:
                event = self._codec.decode(record.value, Event)
                if event.rollout_id in self.rows:
                    self.rows[event.rollout_id].take(event, record.timestamp_ms)
                return None
            scored = self._codec.decode(record.value, ScoredTrajectory)
        except WireError:  # buried by readers in a group; here it is only not shown
            return None
        row = self.rows.get(scored.trajectory.rollout_id)
        if row is None or row.scored is not None:
            return None
        if self.scoring_id not in ("", scored.scoring_id):
            return None
        row.scored = scored
        return row

    def begun(self) -> bool:
        """Return True if any of them was started."""
        return any(row.scored or row.started_ms is not None for row in self.rows.values())

    def missing(self) -> list[str]:
        """Return the ids of rollouts without a score, in the order of submission."""
        return [row.rollout_id for row in self.rows.values() if row.scored is None]

    def totals(self) -> str:
        """Describe how many are scored, how they ended, and their mean reward."""
        scored = [row.scored for row in self.rows.values() if row.scored]
        statuses = Counter(each.trajectory.status for each in scored)
        rewards = [each.total for each in scored if each.total is not None]
        words = [f"{len(scored):,} of {len(self.rows):,} scored"]
        words += [f"{count:,} {status}" for status, count in sorted(statuses.items())]
        words += [f"mean reward {sum(rewards) / len(rewards):+.3f}"] if rewards else []
        return ", ".join(words)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
