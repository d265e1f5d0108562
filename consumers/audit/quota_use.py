"""The highest use of quotas by users, as far as the log shows: figures, not an invariant.

A rollout runs from its first command, by the time on its topic, else from its first counted
answer, to its end. Only the time since the user's quota was written is considered: before, another
one may have applied, which the topic does not keep, or one from the settings. Use above the quota
can be legitimate: every worker gives out its share and at least one, workers learn of a quota at
different times, a lowered one stops no running rollout, and when a partition moves, its share moves
at once while its running rollouts stay. No record shows how many a worker was allowed to begin. So
these figures are reported, and are never a breach.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.consumers.audit.columns import find, sort_together, to_words
from rollcall.schemas.messages import Quota

HEARD_MS = 5000
"""Time after its writing by which every worker applies a quota."""
NEVER = (1 << 63) - 1

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuotaFigure:
    """The quota of one user, and the highest use since it was written."""

    user: str
    running: int
    """The limit of the quota; 0 is no limit."""
    most_running: int
    running_at_ms: int
    """The time of that number; 0 if no rollout began."""

    @property
    def over(self) -> bool:
        """True if the use was above the quota."""
        return 0 < self.running < self.most_running


class QuotaUse:
    """Collects the rollouts of users who have a quota; 40 bytes each."""

    def __init__(self, quotas: Mapping[str, Quota], since_ms: Mapping[str, int]) -> None:
        """Take quotas, and the time when each was written."""
        limited = {name: q for name, q in quotas.items() if q.running}
        self.quotas = [(quota, since_ms[name]) for name, quota in sorted(limited.items())]
        self._numbers = {quota.user: number for number, (quota, _) in enumerate(self.quotas)}
        self._rows = array("Q"), array("Q"), array("Q"), array("Q")
        """Owner, number of the user, first answer, end."""
        self._sent = array("Q"), array("Q")
        """Owner and time of first commands."""

    def watches(self, user: str) -> bool:
        """Return True if this user's rollouts are to be collected."""
        return user in self._numbers

    def ended(self, user: str, owner: int, heard_ms: int, ended_ms: int = NEVER) -> None:
        """Note a rollout that ended or is open at the end; `heard_ms` is 0 if it has no answer."""
        row = owner, self._numbers[user], heard_ms or NEVER, ended_ms
        for column, word in zip(self._rows, row, strict=True):
            column.append(word)

    def sent(self, owner: int, at_ms: int) -> None:
        """Note a first command on its topic, perhaps a repeated one."""
        self._sent[0].append(owner)
        self._sent[1].append(at_ms)

    def figures(self) -> list[QuotaFigure]:
        """Return the figures of each user who has a quota."""
        owners, users, heard, ended = (column.astype(np.int64) for column in _columns(self._rows))
        began = np.minimum(heard, self._sent_at(owners.astype(np.uint64)))
        return [
            _figure(quota, since_ms, began[users == number], ended[users == number])
            for number, (quota, since_ms) in enumerate(self.quotas)
        ]

    def _sent_at(self, owners: NDArray[np.uint64]) -> Times:
        """Return the earliest time of each rollout's first command."""
        at, sent = sort_together(*reversed(self._sent))
        by_owner = np.argsort(sent, kind="stable")
        rows = find(sent[by_owner], owners)
        if not len(at):
            return np.full(len(owners), NEVER)
        return np.where(rows < 0, NEVER, at[by_owner].astype(np.int64)[rows])


def _columns(rows: tuple["array[int]", ...]) -> list[NDArray[np.uint64]]:
    return [to_words(column) for column in rows]


def _figure(quota: Quota, since_ms: int, began: Times, ended: Times) -> QuotaFigure:
    begun = np.sort(began[began != NEVER])
    over = np.sort(ended[began != NEVER])
    judged = begun[begun >= since_ms + HEARD_MS]
    most_running = running_at = 0
    if len(judged):
        # At each begin: the rollouts that had begun by then, minus those that had ended.
        running = begun.searchsorted(judged, "right") - over.searchsorted(judged, "right")
        at = int(running.argmax())
        most_running, running_at = int(running[at]), int(judged[at])
    return QuotaFigure(quota.user, quota.running, most_running, running_at)
