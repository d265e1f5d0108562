"""The commands that the journal implies: place, content and state of each.

A command takes 20 bytes. Only unanswered ones are kept longer.
"""

from array import array

import numpy as np

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.audit.columns import Words, find, firsts, sort_together, to_words
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import prefix_digest
from rollcall.schemas.messages import CallFailed, Event, ModelCall

NEVER_SENT = {
    FailureCode.TOO_LARGE,
    FailureCode.UNKNOWN_POLICY,
    FailureCode.OUT_OF_BOUNDS,
    FailureCode.UNWRITABLE,
}
"""Codes under which an owner answers a command that cannot be sent."""
COURTESY = {"abort", "close"}
CONTENT = 0xFFFFFFFF
UNKNOWN = 0
"""Content of a courtesy, and of an id for which several commands were implied."""

# States of a command, in rising order.
IMPLIED = 0
LATE = 1
"""Its deadline was written, perhaps by its owner; no worker has answered."""
FAILED = 2
DONE = 3


class GivenUp:
    """Commands of one journal that its present owner gave up at their deadlines.

    If a quota of its user held such a command back, no commit waited for it to be sent. The next
    owner of the journal finds it given up, and sends only commands that are still waited for.
    """

    def __init__(self, excused: set[int]) -> None:
        self._excused = excused
        self._by_owner: dict[str, set[int]] = {}

    def note(self, event: Event) -> None:
        """Note a deadline, by the name of the writer."""
        self._by_owner.setdefault(event.written_by, set()).add(word_of_id(event.command_id))

    def decided_by(self, owner: str) -> None:
        """Note the present owner; commands that earlier owners gave up may never have been sent."""
        for other in self._by_owner.keys() - {owner}:
            self._excused |= self._by_owner.pop(other)


def word_of_id(command_id: bytes) -> int:
    """Return the first 64 bits of a command id."""
    return int.from_bytes(command_id[:8], "big")


def content_of(command: Command) -> int:
    """Return a digest of a command's content, valid in this process.

    Times are left out: a quota moves them, and no history depends on them.
    """
    if command.kind in COURTESY:
        return UNKNOWN
    place = command.rollout_id, command.attempt, command.position, command.tries
    content = command.body_digest, command.answer_partition
    return (hash((*place, *content, _content(command))) & CONTENT) or 1


def _content(command: Command) -> tuple[object, ...]:
    if isinstance(command, ModelCall):
        how = command.sampling
        prompt = command.sequence, command.messages, prefix_of(command), command.prefix_length
        policy = command.policy_id, command.min_policy_version, command.tools, command.seed
        numbers = _number(how.temperature), _number(how.top_p), how.top_k, how.max_tokens
        return (*prompt, *policy, *numbers, tuple(how.stop))
    session = command.environment, command.session, command.environment_config, command.seed
    return (*session, command.kind, command.index, command.action, command.history)


def prefix_of(call: ModelCall) -> bytes:
    """Return the digest of the tokens so far, whether they were sent or only their digest."""
    ids = call.prefix_ids
    return call.prefix_digest if ids is None else prefix_digest(ids)


def _number(value: float) -> float | None:
    """Replace NaN by None, since NaN is not equal to itself and its hashes differ."""
    return value if value == value else None


class ImpliedCommands:
    """All commands of all journal partitions."""

    def __init__(self) -> None:
        self.ids: Words
        self.places: Words
        self.contents: Words
        self.excused: set[int] = set()
        """Implied commands that may rightly never have been sent."""
        self.unanswered: set[int] = set()
        """Commands that no worker has answered."""
        self.repeated = 0
        """Answers to commands whose work had been done before."""
        self.last_repeated = 0
        self._ids, self._places, self._contents = array("Q"), array("Q"), array("I")
        self._late_by: dict[int, set[str]] = {}
        """The writers of the deadlines of commands in state LATE."""
        self._undone: set[int] = set()
        self._late_ids, self._late_places = array("Q"), array("Q")

    def imply(self, command: Command, place: int) -> None:
        """Note a command that an entry of the journal implies."""
        self._ids.append(word_of_id(command.command_id))
        self._places.append(place)
        self._contents.append(content_of(command))

    def failure(self, implied: dict[bytes, int], event: Event, body: CallFailed) -> None:
        """Note a failure of a command of an open rollout."""
        state = implied[event.command_id]
        if body.code != FailureCode.DEADLINE:
            implied[event.command_id] = max(state, FAILED)
        elif state <= LATE:
            implied[event.command_id] = LATE
            self._note_deadline(event)

    def _note_deadline(self, event: Event) -> None:
        self._late_by.setdefault(word_of_id(event.command_id), set()).add(event.written_by)

    def answer(self, implied: dict[bytes, int], event: Event, place: int) -> None:
        """Note an answer to a command of an open rollout."""
        if implied[event.command_id] == DONE:
            self.repeat(place)
        implied[event.command_id] = DONE

    def repeat(self, place: int) -> None:
        """Count work that was done again."""
        self.repeated += 1
        self.last_repeated = place

    def stray(self, event: Event, place: int, *, done: bool) -> None:
        """Note an answer to a rollout that was not open."""
        word = word_of_id(event.command_id)
        if done:
            self._late_ids.append(word)
            self._late_places.append(place)
        if isinstance(event.body, CallFailed) and event.body.code == FailureCode.DEADLINE:
            if word in self.unanswered:
                self._note_deadline(event)
        else:
            self.unanswered.discard(word)

    def ended(self, implied: dict[bytes, int]) -> None:
        """Keep only the commands of an ended rollout that were not done, or not answered.

        A command without any answer, or even a deadline, by then may never have been sent: the next
        owner of a journal sends only commands that are still waited for.
        """
        self.excused.update(word_of_id(i) for i, state in implied.items() if state == IMPLIED)
        self._undone.update(word_of_id(i) for i, state in implied.items() if state != DONE)
        self.left(implied)

    def left(self, implied: dict[bytes, int]) -> None:
        """Note the unanswered commands of a rollout that is open at the end of the journal."""
        self.unanswered.update(word_of_id(i) for i, state in implied.items() if state <= LATE)

    def close(self, owners: set[str]) -> None:
        """Sort for joins after the journal is read. A deadline that no owner wrote is an answer."""
        ids, places, contents = sort_together(self._ids, self._places, self._contents)
        first = firsts(ids)
        again = np.flatnonzero(~first)
        origin = find(ids, ids[again])
        # If one id was implied with several contents, the content of its command is not checked.
        differ = (contents[again] != contents[origin]) & (contents[again] > 0)
        contents[origin[differ]] = UNKNOWN
        self.ids, self.places, self.contents = ids[first], places[first], contents[first]
        for word, names in self._late_by.items():
            if not names <= owners:
                self.unanswered.discard(word)
        self._late_by.clear()
        self._count_late()

    def _count_late(self) -> None:
        """Count answers after the end of a rollout as repeats, except the first to each command."""
        rows = find(self.ids, to_words(self._late_ids))
        known = set(self.ids[rows[rows >= 0]].tolist())
        for late, at in zip(self._late_ids, self._late_places, strict=True):
            if late in self._undone:
                self._undone.discard(late)
            elif late in known:
                self.repeat(at)
