"""The first offsets of a new scoring on `trajectories`.

A request names the scorings that owe it a score; a request that names none needs one score by any
scoring. So a scoring that is started for the first time has to read

1. from the first request that names it, and
2. of those that name none, the ones that no scoring has passed. Every scoring takes these, so the
   commits of the others show how far that is.

The earlier of both is committed before the first worker joins the group. Later workers continue
from the group's commits.
"""

from collections.abc import Mapping

import structlog

from rollcall.consumers.history.reading.ranges import SKEW_MS
from rollcall.consumers.log.protocols import Commit, Log
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.topics import Topics

Offsets = dict[int, int]

log = structlog.get_logger()


def begin_scoring(log_: Log, codec: Codec, topics: Topics, scoring_id: str) -> None:
    """Commit the first offsets of a scoring's group, unless it has commits or members already.

    Raises Unavailable.
    """
    group, topic = topics.group("rewards", scoring_id), topics.trajectories
    if log_.commits(group, topic):
        return
    bounds = log_.bounds(topic)  # read first: later requests end behind these offsets
    named = _first_named(log_, codec, topics, scoring_id, bounds)
    unnamed = _past_by_others(log_, topics, scoring_id)
    commits = []
    for number, (low, end) in bounds.items():
        begin = min(named[number], unnamed.get(number, low))
        commits.append(Commit(topic, number, min(max(begin, low), end), ""))
    try:
        log_.commit_for(group, commits)
    except Refused as error:
        log.info("scoring_started_elsewhere", scoring=scoring_id, reason=str(error))
        return
    log.info(
        "scoring_started", scoring=scoring_id, offsets={c.partition: c.offset for c in commits}
    )


def _first_named(
    log_: Log, codec: Codec, topics: Topics, scoring_id: str, bounds: Mapping[int, tuple[int, int]]
) -> Offsets:
    """Return by partition an offset before which no rollout ended that names the scoring.

    If retention has deleted requests, they may have named it: then this is the low watermark.
    """
    if any(low for low, _ in log_.bounds(topics.requests).values()):
        return {number: low for number, (low, _) in bounds.items()}
    first_ms = None
    for record in read_all(log_, [topics.requests]):
        if first_ms is not None and record.timestamp_ms >= first_ms:
            continue
        try:
            (scorings,) = codec.pick(record.value, RolloutRequest, "scorings")
        except WireError:
            continue  # it is refused, and its trajectory names no scoring
        if scoring_id in scorings:
            first_ms = record.timestamp_ms
    if first_ms is None:
        return {number: end for number, (_, end) in bounds.items()}
    at = log_.offsets_for_times([topics.trajectories], max(0, first_ms - SKEW_MS))
    return {
        number: at.get((topics.trajectories, number), low) for number, (low, _) in bounds.items()
    }


def _past_by_others(log_: Log, topics: Topics, scoring_id: str) -> Offsets:
    """Return by partition the highest committed offset of the other scorings."""
    prefix, past = topics.group("rewards", ""), Offsets()
    for group in log_.group_names():
        if not group.startswith(prefix) or group == prefix + scoring_id:
            continue
        for number, offset in log_.committed(group, topics.trajectories).items():
            past[number] = max(offset, past.get(number, 0))
    return past
