"""The state of `control`: a table by key, in which the last record of each key counts.

The topic is compacted, so the table must depend only on the last record of each key: readers before
and after a compaction come to the same table, whatever other producers wrote. A record without a
key, or with an empty one, is stored under the key that our own producers would give it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from rollcall.producers.control import control_key
from rollcall.schemas.bounds import NAME_BYTES
from rollcall.schemas.messages import Control, RolloutRequest
from rollcall.schemas.untrusted_text import clean_text

REASON_CHARS = 200
"""The kept length of a record's reason."""
MOST_RECORDS = 100_000
"""The most records that are kept; above it the oldest are dropped, pauses last."""
KEY_BYTES = 4 * NAME_BYTES
"""The longest key; ours consist of names, which are shorter. Records with
longer keys are ignored."""

log = structlog.get_logger()
Subject = tuple[str, str]
"""The kind of target (a rollout, a group, or the paused requests) and its name."""


class ControlRecord(NamedTuple):
    """A stored record of `control`."""

    kind: str
    subject: Subject
    reason: str
    at_ms: int


def subject_of(order: Control) -> Subject:
    """Return the target of a record; empty for a record that controls no rollout."""
    if order.kind == "cancel":
        return ("rollout", order.rollout_id) if order.rollout_id else ("group", order.group_id)
    return ("pause", order.run_id) if order.kind in ("pause", "resume") else ("", "")


@dataclass
class ControlState:
    """The `control` topic as a table; of several records with one target the last counts."""

    known: bool = False
    """True if the topic has been read to the end that it had at the beginning."""
    records: dict[bytes, ControlRecord] = field(default_factory=dict)
    """Records by key, in the order in which they were last written."""
    paused_runs: set[str] = field(default_factory=set)
    """Runs in which no rollout may begin; the empty name stands for all requests."""
    forgotten: int = 0
    """The number of records dropped because there were too many."""
    _keys: dict[Subject, tuple[bytes, ...]] = field(default_factory=dict)
    """The keys of the records of each target, in the order of the records."""

    def apply_order(self, order: Control, key: bytes | None = None, at_ms: int = 0) -> None:
        """Apply the last record of a key."""
        key = key or control_key(order).encode(errors="replace")
        self._drop(key)
        subject = subject_of(order)
        longest = max(len(key) - KEY_BYTES, len(subject[1].encode(errors="replace")) - NAME_BYTES)
        if order.kind == "unknown" or longest > 0:
            return
        self.records[key] = ControlRecord(
            order.kind, subject, clean_text(order.reason, REASON_CHARS), at_ms
        )
        if subject[0]:
            self._keys[subject] = (*self._keys.get(subject, ()), key)
            self._note_pause(subject)
        if len(self.records) > MOST_RECORDS:
            self._forget_oldest()

    def _drop(self, key: bytes) -> None:
        replaced = self.records.pop(key, None)
        if replaced is None or not replaced.subject[0]:
            return
        left = tuple(each for each in self._keys[replaced.subject] if each != key)
        if left:
            self._keys[replaced.subject] = left
        else:
            del self._keys[replaced.subject]
        self._note_pause(replaced.subject)

    def _note_pause(self, subject: Subject) -> None:
        what, run_id = subject
        if what != "pause":
            return
        keys = self._keys.get(subject)
        if keys and self.records[keys[-1]].kind == "pause":
            self.paused_runs.add(run_id)
        else:
            self.paused_runs.discard(run_id)

    def _forget_oldest(self) -> None:
        oldest = (key for key, record in self.records.items() if record.subject[0] != "pause")
        self._drop(next(oldest, next(iter(self.records))))
        self.forgotten += 1
        if self.forgotten == 1:
            remedy = "the oldest are forgotten; see who writes so many with `rollcall tail control`"
            log.warning("control_records_over_limit", most=MOST_RECORDS, remedy=remedy)

    @property
    def paused(self) -> bool:
        """True if no request may be started."""
        return "" in self.paused_runs

    @property
    def rollouts(self) -> dict[str, str]:
        """The ids of the rollouts that are cancelled individually, with the reasons."""
        named = (record for record in self.records.values() if record.subject[0] == "rollout")
        return {record.subject[1]: record.reason for record in named}

    def cancels(self, request: RolloutRequest) -> str | None:
        """Return the reason why this request is to be cancelled, None if it is not."""
        return self.reason_for(request.rollout_id, request.group_id)

    def reason_for(self, rollout_id: str, group_id: str) -> str | None:
        """Return the reason to cancel a rollout of a group, or None; an empty
        group id matches nothing."""
        for subject in (("rollout", rollout_id), ("group", group_id)):
            if subject[1] and subject in self._keys:
                return self.records[self._keys[subject][-1]].reason
        return None

    def keys_of(self, rollout_id: str) -> tuple[bytes, ...]:
        """Return the keys of the records that cancel one rollout."""
        return self._keys.get(("rollout", rollout_id), ())

    def older_than(self, at_ms: int) -> Iterator[tuple[bytes, ControlRecord]]:
        """Yield the records that neither pause nor resume, and were written before a time."""
        for key, record in self.records.items():
            if record.subject[0] != "pause" and record.at_ms < at_ms:
                yield key, record
