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
from consumers.loop.letter_records import At, Letter, Mark, Origin, Skip, letter_record
from schemas.bounded import whole_number
from schemas.errors import Refused, WireError
from schemas.names import unknown

PLACE = re.compile(r"(\d+)@(\d+)(?:-(\d+))?", re.ASCII)


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
    named = (match[1], match[2], match[3] or match[2]) if match else ()
    match [whole_number(number) for number in named]:
        case [int(partition), int(first), int(last)]:
            return partition, first, last
    msg = f"{text!r} is no place; give PARTITION@OFFSET or PARTITION@FIRST-LAST, such as 0@12"
    raise Refused(msg)


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
        """Records that are neither letters nor orders of ours."""
        self.skips: list[Skip] = []
        marks: list[Mark] = []
        for record in self.records():
            said = letter_record(record)
            if isinstance(said, Mark):
                marks.append(said)
            elif isinstance(said, Skip):
                self.skips.append(said)
            elif isinstance(said, Letter):
                self._add(record, said)
            elif said is None:
                self.foreign += 1
        for mark in marks:
            if mark.letter in self.at:
                self.at[mark.letter].state = mark.state

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

    def _add(self, record: Record, said: Letter) -> None:
        at, origin = (record.partition, record.offset), said.origin
        letter = self.letters.get(origin)
        if letter is None:
            why = said.error, said.message
            letter = DeadLetter(at, origin, record.timestamp_ms, *why, [], cut=said.cut)
            self.letters[origin] = letter
        letter.copies.append(at)
        letter.groups += [said.group] if said.group not in letter.groups else []
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
