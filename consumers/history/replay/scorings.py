"""The scorings that owe scores: listed, begun at the right offsets, and retired.

A scoring owes a score to each trajectory whose request names it; `verify --drained` and `waiting`
check that. A scoring is retired by metadata in its commits
(`rollcall.consumers.loop.scoring_retirement`).

A request that names no scoring needs one score by any scoring. So a scoring that is started for the
first time has to read

1. from the first request that names it, and
2. of those that name none, the ones that no scoring has passed. Every scoring takes these, so the
   furthest commits of the others say how far they are.

The earlier of both is committed before the first worker joins the group. Later workers continue
from the group's commits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from rollcall.consumers.history.reading.history import History, LiveHistory
from rollcall.consumers.history.reading.ranges import SKEW_MS
from rollcall.consumers.log.protocols import Commit, Log
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.scoring_retirement import retired, retired_word
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.names import unknown_name
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


@dataclass(frozen=True, slots=True)
class ScoringState:
    """The state of one group of scorers."""

    scoring_id: str
    commits: tuple[Commit, ...]
    behind: int
    """The number of trajectories behind its commits."""
    retired: str | None
    """Time and reason of its retirement; None if it owes scores."""


def scorings(history: History) -> list[ScoringState]:
    """Return every scoring with a commit; raises Unavailable."""
    groups = history.topics.group("rewards", "")
    names = [name for name in history.log.group_names() if name.startswith(groups)]
    states = (_state(history, name, name.removeprefix(groups)) for name in names)
    return [state for state in states if state.commits]


def _state(history: History, group: str, scoring_id: str) -> ScoringState:
    topic = history.topics.trajectories
    commits = history.log.commits(group, topic)
    bounds = history.log.bounds(topic)
    behind = sum(
        end - max(start, commits[number].offset if number in commits else start)
        for number, (start, end) in bounds.items()
    )
    return ScoringState(scoring_id, tuple(commits.values()), behind, retired(commits.values()))


def retire_scoring(history: LiveHistory, scoring_id: str, reason: str) -> ScoringState:
    """Retire a scoring; raises Refused if it is unknown, or has workers."""
    if not reason.strip():
        msg = "say why with --reason: it is kept beside the scoring's commits"
        raise Refused(msg)
    known = {scoring.scoring_id: scoring for scoring in scorings(history)}
    if scoring_id not in known:
        raise unknown_name("scoring", scoring_id, sorted(known))
    group = history.topics.group("rewards", scoring_id)
    members = sorted({member.client_id for member in history.admin.members([group])})
    if members:
        msg = f"{', '.join(members)} score for {scoring_id!r}; `rollcall drain {members[0]}` first"
        raise Refused(msg)
    word = retired_word(datetime.now(UTC).isoformat(timespec="seconds"), reason)
    commits = [replace(commit, metadata=word) for commit in known[scoring_id].commits]
    history.log.commit_for(group, commits)
    return _state(history, group, scoring_id)
