"""The scores that are owed to trajectories, and the missing ones.

A trajectory whose request names scorings is owed a score by each of them. One whose request names
none is owed one score by any scoring; from the first of these that a scoring has scored in a
partition, it takes all. A scoring has scored all that its group has committed.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import Words, unpack_place
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.loop.scoring_retirement import retired

Here = tuple[str, int, int]
Flags = NDArray[np.bool_]


class OwedScores:
    """Checks every scoring for the scores that it owes; one for each audit."""

    def __init__(
        self, case: AuditState, first: Words, written: Flags, scores: Mapping[str, Flags]
    ) -> None:
        """Take columns with a row for each end of a rollout.

        `first` is the place of its trajectory, `written` is set if there is one, and `scores` has a
        column per scoring id, set if there is a score.
        """
        self.case = case
        self.first = first
        self.written = written
        self.scores = scores
        self.unseen = np.zeros(len(written), bool)
        self.owing = list(self._owing())
        self._begins: dict[str, dict[int, int]] = {}

    def check(self) -> None:
        """Report each score that is owed and missing."""
        asked, named_sets = self.case.journal.ends.asked, self.case.journal.ends.named
        scored_by_any = np.any([self.unseen, *self.scores.values()], axis=0)
        for row in np.flatnonzero(self.written).tolist():
            named = named_sets[int(asked[row])]
            here = self.case.topics.trajectories, *unpack_place(int(self.first[row]))
            found = any([self._by(each, row, here, named) for each in self._takers(named)])
            if not (found or named or scored_by_any[row]) and self.case.scorings is None:
                self._unscored(here)

    def _owing(self) -> Iterator[str]:
        """Yield the scorings that owe scores: those that were given, else all that have commits."""
        if self.case.scorings is not None:
            yield from self.case.scorings
            return
        groups = self.case.topics.group("rewards", "")
        for group, commits in self.case.window.commits.items():
            if group.startswith(groups):
                scoring_id = group.removeprefix(groups)
                word = retired(commits.values())
                if word is None:
                    yield scoring_id
                else:
                    self.case.report.retired[scoring_id] = word

    def _takers(self, named: Sequence[str]) -> list[str]:
        """Return the scorings that may owe a score to a request that names these."""
        if not named:
            return self.owing
        expected, done_for = self.case.scorings, self.case.report.retired
        return [
            each
            for each in named
            if each not in done_for and (expected is None or each in expected)
        ]

    def _by(self, scoring_id: str, row: int, here: Here, named: Sequence[str]) -> bool:
        """Report a missing score that this scoring owes; return True if one was reported."""
        report, group = self.case.report, self.case.topics.group("rewards", scoring_id)
        must = bool(named) or self.case.scorings is not None
        done = (must or here[2] >= self._begin(scoring_id, here[1])) and self.case.finished(
            group, *here
        )
        report.checked["I6"] += done
        if self.scores.get(scoring_id, self.unseen)[row]:
            return False
        if done:
            text = f"{group} has committed past this trajectory, but has not scored it"
            report.add(Breach("I6", text, *here, "lost"))
        elif must:
            self._missing(here, f"this trajectory has no scored record of {scoring_id!r}")
        return done or must

    def _begin(self, scoring_id: str, partition: int) -> int:
        """Return the offset from which a scoring takes trajectories whose request names none."""
        if scoring_id not in self._begins:
            unnamed = self.case.journal.ends.asked == 0
            scored = self.scores.get(scoring_id, self.unseen) & self.written & unnamed
            begins: dict[int, int] = {}
            for number, offset in map(unpack_place, map(int, self.first[scored])):
                begins[number] = min(offset, begins.get(number, offset))
            self._begins[scoring_id] = begins
        return self._begins[scoring_id].get(partition, np.iinfo(np.int64).max)

    def _unscored(self, here: Here) -> None:
        """Report a trajectory that no scoring has scored, although any of them would do."""
        groups = [self.case.topics.group("rewards", each) for each in self.owing]
        if any(self.case.finished(group, *here) for group in groups):
            text = f"{', '.join(groups)} came past this trajectory, and none has scored it"
            self.case.report.add(Breach("I6", text, *here, "lost"))
        elif self.owing or not self.case.report.retired:
            self._missing(here, "no scoring has scored this trajectory")

    def _missing(self, here: Here, text: str) -> None:
        if self.case.drained:
            self.case.report.add(Breach("I8", text, *here, "lost"))
        else:
            self.case.report.pending += 1
