"""Lists the scorings that owe scores, and retires one that no worker runs any more.

A scoring owes a score to each trajectory whose request names it; `verify --drained` and `waiting`
check that. A scoring is retired by metadata in its commits
(`rollcall.consumers.loop.scoring_retirement`).
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rollcall.consumers.history.reading.history import History, LiveHistory
from rollcall.consumers.log.protocols import Commit
from rollcall.consumers.loop.scoring_retirement import retired, retired_word
from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name


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
