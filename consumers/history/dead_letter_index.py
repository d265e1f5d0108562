"""Dead letters: which there are, and what was done with each.

Several processes may have buried one record, and one process several times: what counts is the
record's own place, so such letters are one. Kafka removes prefixes only, therefore what was
replayed or dropped is marked by a small record on `dead.letters` itself, in the partition of the
letter, with a header that names it; listing and replaying honour the marks.
"""

import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from consumers.history.history import History
from consumers.history.times import time_ms
from consumers.log.protocols import Record
from consumers.log.reading import read_all
from consumers.loop.dead_letters import Skip, origin_of, skip_of
from schemas.as_json import text_of
from schemas.errors import Refused, WireError
from schemas.names import unknown

PLACE = re.compile(r"(\d+)@(\d+)(?:-(\d+))?", re.ASCII)
MARKS = {"dlq_replayed": "replayed", "dlq_dropped": "dropped"}

Origin = tuple[str, int, int]
"""Topic, partition and offset of the record that nobody could read."""
At = tuple[int, int]
"""Partition and offset on `dead.letters`."""


@dataclass(slots=True)
class DeadLetter:
    """One record that was buried, by its first letter."""

    at: At
    origin: Origin
    buried_ms: int
    error: str
    message: str
    groups: list[str]
    copies: list[At] = field(default_factory=list)
    """All its letters."""
    state: str = ""
    """Empty, `replayed` or `dropped`."""
    cut: bool = False
    """Whether it holds only a part of what was buried: the whole would not have fitted."""

    def place(self) -> str:
        """Where it lies, as people name it."""
        return f"{self.at[0]}@{self.at[1]}"

    def came_from(self) -> str:
        """Where the record lies that nobody could read."""
        topic, partition, offset = self.origin
        return f"{topic} {partition}@{offset}"


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Which letters are meant: those at these places that also pass the filters."""

    places: tuple[tuple[int, int, int], ...]
    """Partition, first and last offset; empty is everywhere."""
    source: str
    error: str
    since: str

    def takes(self, letter: DeadLetter, prefix: str, since_ms: int | None) -> bool:
        """Whether a letter is meant; topics may be named without the prefix."""
        named = any(
            p == at[0] and a <= at[1] <= b for p, a, b in self.places for at in letter.copies
        )
        return (
            (named or not self.places)
            and (not self.source or letter.origin[0] in (self.source, f"{prefix}{self.source}"))
            and self.error in ("", letter.error)
            and (since_ms is None or letter.buried_ms >= since_ms)
        )


def choice_of(
    places: Iterable[str], *, source: str, error: str, since: str, every: bool
) -> LetterChoice:
    """What was chosen; raises Refused for nothing at all and for what is no place."""
    ranges = tuple(offset_range(text) for text in places)
    if not (ranges or source or error or since or every):
        msg = (
            "no letters are chosen: name PARTITION@OFFSET, or --source, --error, --since, or --all"
        )
        raise Refused(msg)
    return LetterChoice(ranges, source, error, since)


def offset_range(text: str) -> tuple[int, int, int]:
    """Partition, first and last offset of a place; raises Refused for what is none."""
    match = PLACE.fullmatch(text)
    if match is None:
        msg = f"{text!r} is no place; give PARTITION@OFFSET or PARTITION@FIRST-LAST, such as 0@12"
        raise Refused(msg)
    first = int(match[2])
    return int(match[1]), first, int(match[3] or first)


class DeadLetterIndex:
    """The letters that are there, without their values, and what was done with them.

    Raises Unavailable.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.topic = history.topics.dead_letters
        self.letters: dict[Origin, DeadLetter] = {}
        self.at: dict[At, DeadLetter] = {}
        self.foreign = 0
        """Records that are no letters of ours."""
        self.skips: list[Skip] = []
        marks: list[tuple[str, At]] = []
        for record in self.records():
            mark, skip = mark_of(record), skip_of(record.headers)
            if mark is not None:
                marks.append(mark)
            elif skip is not None:
                self.skips.append(skip)
            else:
                self._add(record)
        for state, at in marks:
            if at in self.at:
                self.at[at].state = state

    def records(self) -> Iterator[Record]:
        """All of the topic, values too."""
        return read_all(self.history.log, [self.topic])

    def at_places(self, places: Collection[At]) -> Iterator[Record]:
        """The records at some places, with their values."""
        for record in self.records():
            if (record.partition, record.offset) in places:
                yield record

    def letter_at(self, place: str) -> tuple[DeadLetter, Record]:
        """One letter and its record; raises Refused where there is none."""
        partition, offset, last = offset_range(place)
        if last != offset:
            msg = (
                f"{place!r} names more than one letter; show takes one, such as "
                f"{partition}@{offset}"
            )
            raise Refused(msg)
        letter = self.at.get((partition, offset))
        record = next(self.at_places({(partition, offset)}), None) if letter else None
        if letter is None or record is None:
            places = sorted(letter.place() for letter in self.letters.values())
            none = Refused("there are no dead letters")
            raise unknown("dead letter", place, places) if places else none
        return letter, record

    def _add(self, record: Record) -> None:
        origin = origin_of(record.headers)
        if origin is None:
            self.foreign += 1
            return
        values = {name: text_of(value) or "" for name, value in record.headers or []}
        at, group = (record.partition, record.offset), values.get("dlq_group", "")
        letter = self.letters.get(origin)
        if letter is None:
            error, message = values.get("dlq_error", ""), values.get("dlq_message", "")
            cut = "dlq_cut" in values
            letter = DeadLetter(at, origin, record.timestamp_ms, error, message, [], cut=cut)
            self.letters[origin] = letter
        letter.copies.append(at)
        letter.groups += [group] if group not in letter.groups else []
        self.at[at] = letter

    def chosen(self, choice: LetterChoice) -> list[DeadLetter]:
        """The letters that are meant, oldest first; raises Refused for names nobody knows."""
        prefix = self.history.topics.prefix
        since_ms = time_ms(choice.since, time.time()) if choice.since else None
        names = [name for name in self.history.log.topic_names() if name.startswith(prefix)]
        topics = {name.removeprefix(prefix) for name in (*names, *(o[0] for o in self.letters))}
        errors = {error.__name__ for error in WireError.__subclasses__()}
        errors |= {letter.error for letter in self.letters.values()}
        if choice.source and choice.source.removeprefix(prefix) not in topics:
            raise unknown("topic", choice.source, topics)
        if choice.error and choice.error not in errors:
            raise unknown("error", choice.error, errors)
        letters = [x for x in self.letters.values() if choice.takes(x, prefix, since_ms)]
        return sorted(letters, key=lambda letter: (letter.buried_ms, letter.at))


def mark_of(record: Record) -> tuple[str, At] | None:
    """What a mark says about which letter; None for a letter."""
    for name, value in record.headers or []:
        match = PLACE.fullmatch(text_of(value) or "") if name in MARKS else None
        if match is not None:
            return MARKS[name], (int(match[1]), int(match[2]))
    return None
