"""Retirement of a scoring that is not run any more, by a mark in its group's commits.

A scoring owes a score to each trajectory whose request names it. `rollcall scorings retire` writes
`retired;TIME;REASON` into the metadata of each commit of its group and leaves the offsets as they
are. A worker that is started again for that scoring continues there, and its own metadata
replace the mark.
"""

from collections.abc import Collection

from rollcall.consumers.log.protocols import Commit

RETIRED = "retired"
SEPARATOR = ";"
REASON = 500
"""Characters of a reason that are kept."""


def retired_word(at: str, reason: str) -> str:
    """Return the mark that retires a scoring; `at` is a time in readable form."""
    return SEPARATOR.join((RETIRED, at, reason[:REASON]))


def retired(commits: Collection[Commit]) -> str | None:
    """Return time and reason of a retirement; None if not retired, or if resumed since."""
    words = {commit.metadata for commit in commits}
    if len(words) != 1:
        return None
    kind, _, rest = words.pop().partition(SEPARATOR)
    at, separator, reason = rest.partition(SEPARATOR)
    return f"{at}: {reason}" if kind == RETIRED and separator else None
