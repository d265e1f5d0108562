"""The work topics against the journal: every command is implied, and every implied one is there.

A look at the header suffices: the id is a digest of the command's place.
"""

import re
from collections.abc import Sequence

import numpy as np

from consumers.console.case import Case
from consumers.console.columns import Words, find, find_one, marks, split, word_of
from consumers.console.history import OPTIONAL, RETRIED
from consumers.console.report import Breach
from consumers.log import Record
from schemas.messages import EnvironmentStep, ModelCall

Command = ModelCall | EnvironmentStep
CE_ID = re.compile(rb"[0-9a-f]{32}")


class Commands:
    """Joins commands by their ids."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._calls = case.topics.calls("")
        self._seen = np.zeros(len(case.history.ids), bool)
        self._waiting = np.array(sorted(case.history.waiting), np.uint64)

    def take(self, topic: str, records: Sequence[Record]) -> None:
        kind = EnvironmentStep if topic == self.case.topics.steps else ModelCall
        named = [(word, r) for r in records if (word := self._named(r, kind)) is not None]
        if not named:
            return
        self.case.report.checked["I3"] += len(named)
        ids = np.fromiter((word for word, _ in named), np.uint64, len(named))
        rows = find(self.case.history.ids, ids)
        self._seen[rows[rows >= 0]] = True
        for at in np.flatnonzero(rows < 0):
            self._not_implied(named[at][1], kind)
        if self.case.history.seeds and kind is ModelCall:
            asked_again = marks(self.case.history.places[rows]) & np.uint64(RETRIED)
            for at in np.flatnonzero((rows >= 0) & (asked_again > 0)):
                self._check_seed(*named[at])
        self._check_answered(topic, named, ids)

    def _named(self, record: Record, kind: type[Command]) -> int | None:
        """The word of a command's id: from its header, else from the command."""
        for name, value in record.headers or ():
            if name == "ce_id" and CE_ID.fullmatch(value or b"") and record.value:
                return int(value[:16], 16)
        command = self.case.decoded(record, kind)
        return None if command is None else int.from_bytes(command.command_id[:8], "big")

    def _not_implied(self, record: Record, kind: type[Command]) -> None:
        command = self.case.decoded(record, kind)
        if command is None or self.case.after(record):
            return
        owner = word_of(command.rollout_id.encode())
        if find_one(self.case.history.owners_not_run, owner) >= 0:
            return
        if self.case.before(command.rollout_id, command.answer_partition):
            return
        text = (
            f"the journal implies no command {command.command_id.hex()[:16]} (position "
            f"{command.position}, try {command.tries}, attempt {command.attempt} of rollout "
            f"{command.rollout_id})"
        )
        self.case.breach("I3", record, text)

    def _check_seed(self, word: int, record: Record) -> None:
        call = self.case.decoded(record, ModelCall)
        seed = self.case.history.seeds.get(word)
        if call is not None and seed is not None and call.seed != seed:
            text = (
                f"call {call.position}, try {call.tries}, of rollout {call.rollout_id} has seed "
                f"{call.seed}, its place has {seed}: a retry must not sample anew"
            )
            self.case.breach("I3", record, text)

    def _check_answered(self, topic: str, named: Sequence[tuple[int, Record]], ids: Words) -> None:
        group = self.case.topics.group("environments")
        if topic != self.case.topics.steps:
            group = self.case.topics.group("models", topic.removeprefix(self._calls))
        committed = self.case.window.commits.get(group, {})
        if not committed:
            return
        waiting = find(self._waiting, ids) >= 0
        for (_, record), waits in zip(named, waiting.tolist(), strict=True):
            below = committed.get((topic, record.partition), 0)
            self.case.report.checked["I6"] += record.offset < below
            if waits and record.offset < below:
                text = f"{group} has committed {below}, but nothing has answered this command"
                self.case.breach("I6", record, text, "lost")

    def finish(self) -> None:
        optional = (marks(self.case.history.places) & np.uint64(OPTIONAL)) > 0
        for row in np.flatnonzero(~self._seen & ~optional):
            cause, word = int(self.case.history.places[row]), int(self.case.history.ids[row])
            if word in self.case.history.excused or not self.case.owed(cause):
                continue
            text = f"the journal implies command {word:016x} here, but it is on no work topic"
            self.case.report.add(Breach("I3", text, self.case.topics.events, *split(cause), "lost"))
