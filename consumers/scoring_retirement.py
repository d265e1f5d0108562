"""A scoring that nobody runs any more: the commits of its group say so.

A scoring owes a score to each trajectory whose request names it. `rollcall scorings retire` writes
`retired;TIME;REASON` into the metadata of each commit of its group and leaves the offsets as they
are. A worker that is started again for that scoring goes on at these offsets, and its own metadata
replace the mark; a worker of an earlier release takes the mark for no metadata.
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
