"""`rollcall scorings`: who owes scores, and taking one off that list that nobody runs any more.

Every group of scorers that was ever started owes a score of every trajectory; `verify --drained`
and `waiting` hold it to that. What retires one is a word beside its commits
(`consumers.scoring_retirement`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table

from consumers.log.protocols import Commit
from consumers.scoring_retirement import retired, retired_word
from schemas.errors import Refused
from schemas.names import unknown

if TYPE_CHECKING:
    from compose.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Scoring:
    """One group of scorers."""

    scoring_id: str
    commits: tuple[Commit, ...]
    behind: int
    """Trajectories that its commits have not come past."""
    retired: str | None
    """When and why; None where it owes scores."""


def scorings(cluster: "Cluster") -> list[Scoring]:
    """Every scoring that has committed anything."""
    groups = cluster.topics.group("rewards", "")
    names = [name for name in cluster.log.group_names() if name.startswith(groups)]
    found = (_scoring(cluster, name, name.removeprefix(groups)) for name in names)
    return [scoring for scoring in found if scoring.commits]


def _scoring(cluster: "Cluster", group: str, scoring_id: str) -> Scoring:
    topic = cluster.topics.trajectories
    commits = cluster.log.commits(group, topic)
    bounds = cluster.log.bounds(topic)
    behind = sum(
        end - max(start, commits[number].offset if number in commits else start)
        for number, (start, end) in bounds.items()
    )
    return Scoring(scoring_id, tuple(commits.values()), behind, retired(commits.values()))


def retire(cluster: "Cluster", scoring_id: str, reason: str) -> Scoring:
    """Let a scoring owe nothing any more; raises Refused where it is unknown, or at work."""
    if not reason.strip():
        msg = "say why with --reason: it is kept beside the scoring's commits"
        raise Refused(msg)
    known = {scoring.scoring_id: scoring for scoring in scorings(cluster)}
    if scoring_id not in known:
        raise unknown("scoring", scoring_id, sorted(known))
    group = cluster.topics.group("rewards", scoring_id)
    members = sorted({member.client_id for member in cluster.admin.members([group])})
    if members:
        msg = f"{', '.join(members)} score for {scoring_id!r}; `rollcall drain {members[0]}` first"
        raise Refused(msg)
    word = retired_word(datetime.now(UTC).isoformat(timespec="seconds"), reason)
    commits = [replace(commit, metadata=word) for commit in known[scoring_id].commits]
    cluster.log.commit_for(group, commits)
    return _scoring(cluster, group, scoring_id)


def table(found: list[Scoring]) -> Table:
    """One row a scoring."""
    shown = Table("scoring", "trajectories behind", "owes scores")
    for row in rows(found):
        shown.add_row(*row)
    return shown


def rows(found: list[Scoring]) -> Iterator[tuple[str, str, str]]:
    for scoring in found:
        owes = "yes" if scoring.retired is None else f"no, retired {scoring.retired}"
        yield scoring.scoring_id, f"{scoring.behind:,}", owes
