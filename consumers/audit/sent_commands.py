"""The work topics against the journal: every command is implied, and every implied one is there.

Each is decoded, which costs no more than reading its headers, and its content has to be the
implied one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.audit.audit_state import AuditState
from rollcall.consumers.audit.columns import (
    Words,
    find,
    find_one,
    marks,
    to_words,
    unpack_place,
    word_of,
)
from rollcall.consumers.audit.ends import OPTIONAL
from rollcall.consumers.audit.implied import COURTESY, UNKNOWN, content_of, word_of_id
from rollcall.consumers.audit.report import Breach
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.messages import EnvironmentStep, ModelCall


@dataclass(slots=True)
class _Unanswered:
    """A command that its group has finished, and that no worker has answered."""

    record: Record
    owner: int
    attempt: int


class SentCommands:
    """Joins commands by their ids."""

    def __init__(self, case: AuditState) -> None:
        self.case = case
        self.implied = case.journal.implied
        self._seen = np.zeros(len(self.implied.ids), bool)
        self._silent = to_words(sorted(self.implied.unanswered))
        self._unanswered: list[_Unanswered] = []
        self._aborted: dict[int, int] = {}
        """The last attempt whose calls were aborted, by owner."""

    def take(self, topic: str, records: Sequence[Record]) -> None:
        """Take commands of one work topic, in order within each partition."""
        kind: type[Command] = EnvironmentStep if topic == self.case.topics.steps else ModelCall
        read = [(c, r) for r in records if (c := self.case.decoded(r, kind)) is not None]
        if not read:
            return
        self.case.report.checked["I3"] += len(read)
        if self.case.journal.quotas.quotas:
            self._note_first(read)
        ids = np.fromiter((word_of_id(c.command_id) for c, _ in read), np.uint64, len(read))
        contents = np.fromiter((content_of(c) for c, _ in read), np.uint32, len(read))
        rows = find(self.implied.ids, ids)
        # A courtesy has the id of the command that it closes, but does not count as that command.
        sent = np.fromiter((c.kind not in COURTESY for c, _ in read), bool, len(read))
        self._seen[rows[(rows >= 0) & sent]] = True
        for at in np.flatnonzero(rows < 0).tolist():
            self._not_implied(*read[at])
        if len(self.implied.ids):
            implied = self.implied.contents[rows]
            other = (rows >= 0) & (contents != implied) & (contents != UNKNOWN)
            other &= implied != UNKNOWN
            for at in np.flatnonzero(other).tolist():
                self._says_other(*read[at])
        for at in np.flatnonzero(contents == UNKNOWN).tolist():
            self._note_abort(read[at][0])
        self._check_answered(topic, read, ids)

    def _note_first(self, read: Sequence[tuple[Command, Record]]) -> None:
        """Note the begin of rollouts, for the figures of quotas."""
        for command, record in read:
            if command.position == 0 and command.attempt == 1 and command.kind not in COURTESY:
                owner = word_of(command.rollout_id.encode())
                self.case.journal.quotas.sent(owner, record.timestamp_ms)

    def _not_implied(self, command: Command, record: Record) -> None:
        if self.case.after(record):
            return
        owner = word_of(command.rollout_id.encode())
        if find_one(self.case.journal.owners_not_run, owner) >= 0:
            return
        if self.case.before(command.rollout_id, command.answer_partition):
            return
        text = f"the journal implies no command {command.command_id.hex()[:16]} ({_named(command)})"
        self.case.breach("I3", record, text)

    def _says_other(self, command: Command, record: Record) -> None:
        what = (
            "its tokens, messages, sampling or seed; a retry must not sample anew"
            if isinstance(command, ModelCall)
            else "its environment, seed, index, action or history"
        )
        text = f"{_named(command)} says something else than the journal implies there: {what}"
        self.case.breach("I3", record, text)

    def _check_answered(
        self, topic: str, read: Sequence[tuple[Command, Record]], ids: Words
    ) -> None:
        group = self.case.group_of(topic)
        commits = self.case.window.commits.get(group)
        if not commits:
            return
        below = {tp[1]: commit.offset for tp, commit in commits.items()}
        done = sum(record.offset < below.get(record.partition, 0) for _, record in read)
        self.case.report.checked["I6"] += done
        for at in np.flatnonzero(find(self._silent, ids) >= 0).tolist():
            command, record = read[at]
            if command.kind not in COURTESY and self.case.finished(
                group, topic, record.partition, record.offset
            ):
                owner = word_of(command.rollout_id.encode())
                self._unanswered.append(_Unanswered(record, owner, command.attempt))

    def _note_abort(self, command: Command) -> None:
        if command.kind == "abort":
            owner = word_of(command.rollout_id.encode())
            self._aborted[owner] = max(command.attempt, self._aborted.get(owner, 0))

    def finish(self) -> None:
        """Report commands that are missing, or that no worker answered."""
        self._finish_answers()
        optional = (marks(self.implied.places) & np.uint64(OPTIONAL)) > 0
        for row in np.flatnonzero(~self._seen & ~optional):
            cause, word = int(self.implied.places[row]), int(self.implied.ids[row])
            if word in self.implied.excused or not self.case.owed(cause):
                continue
            text = f"the journal implies command {word:016x} here, but it is on no work topic"
            self.case.report.add(
                Breach("I3", text, self.case.topics.events, *unpack_place(cause), "lost")
            )

    def _finish_answers(self) -> None:
        """Report finished commands without an answer, unless they were aborted or put aside."""
        for left in self._unanswered:
            called_off = self._aborted.get(left.owner, 0) >= left.attempt
            if not called_off and not self.case.put_aside(left.record):
                text = "its group has committed past this command, but no worker ever answered it"
                self.case.breach("I6", left.record, text, "lost")


def _named(command: Command) -> str:
    return (
        f"position {command.position}, try {command.tries}, attempt {command.attempt} of rollout "
        f"{command.rollout_id}"
    )
