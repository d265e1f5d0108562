"""What `control` says: a table by key, in which the last record of each key counts.

The topic is compacted, so the table may depend on nothing else: whoever reads the topic before a
compaction and whoever reads it after come to the same, whatever foreign producers wrote. A record
without a key, or with an empty one, stands under the key that our own producers would give it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from producers.control import control_key
from schemas.bounds import NAME_BYTES
from schemas.foreign_text import plain
from schemas.messages import Control, RolloutRequest

REASON_CHARS = 200
"""Of a word's reason so much is kept."""
MOST_WORDS = 100_000
"""So many words are kept; above that the oldest are forgotten, those that pause last."""
KEY_BYTES = 4 * NAME_BYTES
"""A longer key holds nothing: ours are made of names, which are shorter."""

log = structlog.get_logger()
Subject = tuple[str, str]
"""What is meant: a rollout, a group, or the requests that are paused; and its name."""


class Said(NamedTuple):
    """One word that is kept."""

    kind: str
    subject: Subject
    reason: str
    at_ms: int


def subject_of(word: Control) -> Subject:
    """What a word is about; a word that steers no rollout is about nothing."""
    if word.kind == "cancel":
        return ("rollout", word.rollout_id) if word.rollout_id else ("group", word.group_id)
    return ("pause", word.run_id) if word.kind in ("pause", "resume") else ("", "")


@dataclass
class ControlState:
    """The `control` topic as a table; of several words on one subject the last counts."""

    known: bool = False
    """Whether all that was there at the beginning has been taken."""
    words: dict[bytes, Said] = field(default_factory=dict)
    """By key, in the order in which they were last written."""
    paused_runs: set[str] = field(default_factory=set)
    """Runs of which no rollout begins; the empty name stands for all requests."""
    forgotten: int = 0
    """Words that were too many."""
    _keys: dict[Subject, tuple[bytes, ...]] = field(default_factory=dict)
    """By subject the keys whose words are about it, in the order of their words."""

    def take(self, word: Control, key: bytes | None = None, at_ms: int = 0) -> None:
        """Take what the last record of a key says."""
        key = key or control_key(word).encode(errors="replace")
        self._drop(key)
        subject = subject_of(word)
        longest = max(len(key) - KEY_BYTES, len(subject[1].encode(errors="replace")) - NAME_BYTES)
        if word.kind == "unknown" or longest > 0:
            return
        self.words[key] = Said(word.kind, subject, plain(word.reason, REASON_CHARS), at_ms)
        if subject[0]:
            self._keys[subject] = (*self._keys.get(subject, ()), key)
            self._note_pause(subject)
        if len(self.words) > MOST_WORDS:
            self._forget_oldest()

    def _drop(self, key: bytes) -> None:
        said = self.words.pop(key, None)
        if said is None or not said.subject[0]:
            return
        left = tuple(each for each in self._keys[said.subject] if each != key)
        if left:
            self._keys[said.subject] = left
        else:
            del self._keys[said.subject]
        self._note_pause(said.subject)

    def _note_pause(self, subject: Subject) -> None:
        what, run_id = subject
        if what != "pause":
            return
        keys = self._keys.get(subject)
        if keys and self.words[keys[-1]].kind == "pause":
            self.paused_runs.add(run_id)
        else:
            self.paused_runs.discard(run_id)

    def _forget_oldest(self) -> None:
        oldest = (key for key, said in self.words.items() if said.subject[0] != "pause")
        self._drop(next(oldest, next(iter(self.words))))
        self.forgotten += 1
        if self.forgotten == 1:
            remedy = "the oldest are forgotten; see who writes so many with `rollcall tail control`"
            log.warning("control_words_too_many", most=MOST_WORDS, remedy=remedy)

    @property
    def paused(self) -> bool:
        """Whether no request is started at all."""
        return "" in self.paused_runs

    @property
    def rollouts(self) -> dict[str, str]:
        """The rollouts that are cancelled each by its id, and why."""
        named = (said for said in self.words.values() if said.subject[0] == "rollout")
        return {said.subject[1]: said.reason for said in named}

    def cancels(self, request: RolloutRequest) -> str | None:
        """The reason why this request is to be cancelled, None when it is not."""
        return self.reason_for(request.rollout_id, request.group_id)

    def reason_for(self, rollout_id: str, group_id: str) -> str | None:
        """Why a rollout of a group is to be cancelled; an empty group is none."""
        for subject in (("rollout", rollout_id), ("group", group_id)):
            if subject[1] and subject in self._keys:
                return self.words[self._keys[subject][-1]].reason
        return None

    def keys_of(self, rollout_id: str) -> tuple[bytes, ...]:
        """The keys under which one rollout is cancelled."""
        return self._keys.get(("rollout", rollout_id), ())

    def older_than(self, at_ms: int) -> Iterator[tuple[bytes, Said]]:
        """Words that steer only what was there before, and were written before a time."""
        for key, said in self.words.items():
            if said.subject[0] != "pause" and said.at_ms < at_ms:
                yield key, said
