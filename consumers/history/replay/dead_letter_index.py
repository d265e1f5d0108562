"""An index of dead letters: their origins and states.

Several processes may have buried one record, and one process several times: letters are identified
by the record's own position, so these count as one. Kafka deletes only prefixes, therefore a
replayed or dropped letter is marked by a small record on `dead.letters` itself, in the partition of
the letter, with a header that names it; listing and replaying honour the marks.
"""

import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.times import time_ms
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.dead_letter_records import (
    At,
    BuriedRecord,
    LetterMark,
    Origin,
    SkipOrder,
    parse_dead_letter_record,
)
from rollcall.schemas.bounded import whole_number
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.names import unknown_name

PLACE = re.compile(r"(\d+)@(\d+)(?:-(\d+))?", re.ASCII)


@dataclass(slots=True)
class DeadLetter:
    """One buried record, with the data of its first letter."""

    at: At
    origin: Origin
    buried_ms: int
    error: str
    message: str
    groups: list[str]
    copies: list[At] = field(default_factory=list)
    """The positions of all its letters."""
    state: str = ""
    """Empty, `replayed` or `dropped`."""
    cut: bool = False
    """True if it holds only a part of the record, which was too large."""

    def place(self) -> str:
        """Return its position on `dead.letters`, as shown to users."""
        return f"{self.at[0]}@{self.at[1]}"

    def came_from(self) -> str:
        """Return the position of the buried record."""
        topic, partition, offset = self.origin
        return f"{topic} {partition}@{offset}"


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """A choice of letters: those at these positions that also pass the filters."""

    places: tuple[tuple[int, int, int], ...]
    """Partition, first and last offset; empty means everywhere."""
    source: str
    error: str
    since: str

    def takes(self, letter: DeadLetter, prefix: str, since_ms: int | None) -> bool:
        """Return True if a letter is chosen; topics may be named without the prefix."""
        named = any(
            p == at[0] and a <= at[1] <= b for p, a, b in self.places for at in letter.copies
        )
        return (
            (named or not self.places)
            and (not self.source or letter.origin[0] in (self.source, f"{prefix}{self.source}"))
            and self.error in ("", letter.error)
            and (since_ms is None or letter.buried_ms >= since_ms)
        )


def select_dead_letters(
    places: Iterable[str], *, source: str, error: str, since: str, every: bool
) -> DeadLetterSelection:
    """Return the choice; raises Refused for an empty one and for malformed positions."""
    ranges = tuple(offset_range(text) for text in places)
    if not (ranges or source or error or since or every):
        msg = (
            "no letters are chosen: name PARTITION@OFFSET, or --source, --error, --since, or --all"
        )
        raise Refused(msg)
    return DeadLetterSelection(ranges, source, error, since)


def offset_range(text: str) -> tuple[int, int, int]:
    """Parse partition, first and last offset; raises Refused for malformed text."""
    match = PLACE.fullmatch(text)
    named = (match[1], match[2], match[3] or match[2]) if match else ()
    match [whole_number(number) for number in named]:
        case [int(partition), int(first), int(last)]:
            return partition, first, last
    msg = f"{text!r} is no place; give PARTITION@OFFSET or PARTITION@FIRST-LAST, such as 0@12"
    raise Refused(msg)


class DeadLetterIndex:
    """The existing letters, without their values, and their states.

    Raises Unavailable.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.topic = history.topics.dead_letters
        self.letters: dict[Origin, DeadLetter] = {}
        self.at: dict[At, DeadLetter] = {}
        self.foreign = 0
        """The number of records that are neither letters nor orders."""
        self.skips: list[SkipOrder] = []
        marks: list[LetterMark] = []
        for record in self.records():
            said = parse_dead_letter_record(record)
            if isinstance(said, LetterMark):
                marks.append(said)
            elif isinstance(said, SkipOrder):
                self.skips.append(said)
            elif isinstance(said, BuriedRecord):
                self._add(record, said)
            elif said is None:
                self.foreign += 1
        for mark in marks:
            if mark.letter in self.at:
                self.at[mark.letter].state = mark.state

    def records(self) -> Iterator[Record]:
        """Return all records of the topic, with their values."""
        return read_all(self.history.log, [self.topic])

    def at_places(self, places: Collection[At]) -> Iterator[Record]:
        """Yield the records at some positions, with their values."""
        for record in self.records():
            if (record.partition, record.offset) in places:
                yield record

    def letter_at(self, place: str) -> tuple[DeadLetter, Record]:
        """Return one letter and its record; raises Refused if there is none."""
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
            raise unknown_name("dead letter", place, places) if places else none
        return letter, record

    def _add(self, record: Record, said: BuriedRecord) -> None:
        at, origin = (record.partition, record.offset), said.origin
        letter = self.letters.get(origin)
        if letter is None:
            why = said.error, said.message
            letter = DeadLetter(at, origin, record.timestamp_ms, *why, [], cut=said.cut)
            self.letters[origin] = letter
        letter.copies.append(at)
        letter.groups += [said.group] if said.group not in letter.groups else []
        self.at[at] = letter

    def chosen(self, choice: DeadLetterSelection) -> list[DeadLetter]:
        """Return the chosen letters, oldest first; raises Refused for unknown topics and errors."""
        prefix = self.history.topics.prefix
        since_ms = time_ms(choice.since, time.time()) if choice.since else None
        names = [name for name in self.history.log.topic_names() if name.startswith(prefix)]
        topics = {name.removeprefix(prefix) for name in (*names, *(o[0] for o in self.letters))}
        errors = {error.__name__ for error in WireError.__subclasses__()}
        errors |= {letter.error for letter in self.letters.values()}
        if choice.source and choice.source.removeprefix(prefix) not in topics:
            raise unknown_name("topic", choice.source, topics)
        if choice.error and choice.error not in errors:
            raise unknown_name("error", choice.error, errors)
        letters = [x for x in self.letters.values() if choice.takes(x, prefix, since_ms)]
        return sorted(letters, key=lambda letter: (letter.buried_ms, letter.at))
