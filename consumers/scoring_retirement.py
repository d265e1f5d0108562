"""A scoring that nobody runs any more: the commits of its group say so.

Whoever reads `trajectories` under a scoring id owes every trajectory a score. `rollcall scorings
retire` writes `retired;TIME;REASON` beside each commit of the group, offsets unchanged, so the word
lies where the debt does. A worker that is started again for that scoring goes on where it was left
and writes its own word over it, also one of an earlier release: to it the word is none.
"""

from collections.abc import Collection

from consumers.log.protocols import Commit

RETIRED = "retired"
SEPARATOR = ";"
REASON = 500
"""Characters of a reason that are kept."""


def retired_word(at: str, reason: str) -> str:
    """The word that retires a scoring; `at` is a time as people write it."""
    return SEPARATOR.join((RETIRED, at, reason[:REASON]))


def retired(commits: Collection[Commit]) -> str | None:
    """When and why a scoring was retired; None where it was not, or somebody has gone on since."""
    words = {commit.metadata for commit in commits}
    if len(words) != 1:
        return None
    kind, _, rest = words.pop().partition(SEPARATOR)
    at, separator, reason = rest.partition(SEPARATOR)
    return f"{at}: {reason}" if kind == RETIRED and separator else None
