"""Whose end a scored trajectory is that nobody can read: its key and its event id still say it.

The rollout has ended, so nobody waits for it: it is a member of its group without a token.
"""

from collections.abc import Iterable

from consumers.log.protocols import Record
from schemas.ids import scored_id
from schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory

EVENT_ID = "ce_id"


def event_id(record: Record) -> str | None:
    """The CloudEvents id in a record's headers."""
    value = dict(record.headers or ()).get(EVENT_ID)
    return None if value is None else value.decode(errors="replace")


def end_of(
    record: Record, requests: Iterable[RolloutRequest], scoring_id: str
) -> ScoredTrajectory | None:
    """The bare end of the one of these requests that the record names, under this scoring."""
    name = event_id(record)
    for request in requests:
        for attempt in range(request.limits.max_attempts + 1):
            if name == scored_id(request.rollout_id, attempt, scoring_id):
                return _bare(request, attempt, scoring_id)
    return None


def _bare(request: RolloutRequest, attempt: int, scoring_id: str) -> ScoredTrajectory:
    trajectory = Trajectory(
        rollout_id=request.rollout_id,
        attempt=attempt,
        status="unreadable",
        request=request,
        policies=(),
        sequences=None,
        steps=None,
        model_calls=0,
        sampled_tokens=0,
        failures=0,
        journal_partition=0,
        first_offset=0,
        last_offset=0,
        started_ms=0,
        ended_ms=0,
    )
    return ScoredTrajectory(scoring_id, trajectory, (), None, "", 0, 0, "unreadable")
