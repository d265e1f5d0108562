"""The records of `dead.letters`: letters and orders. Every reader of that topic parses them here.

A letter identifies the record that it is a copy of, in `dlq_topic`, which every letter has. An
order has no such header: its header names are those of its kind, each once, and no others. So a
letter is never an order, whatever headers its record came with. Orders need write access to
`dead.letters`, and each names its author.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from rollcall.consumers.log.protocols import Record
from rollcall.schemas.bounded import whole_number
from rollcall.schemas.headers import REPLAYED_FROM, Headers, texts

RANGE = re.compile(r"(\S+) (\d+)@(\d+)-(\d+)", re.ASCII)
PLACE = re.compile(r"(\d+)@(\d+)", re.ASCII)
LETTER = "dlq_topic"
"""The header that every letter has, and no order."""
SKIP = "dlq_skip"
"""The header of an order that states the skipped range: `TOPIC PARTITION@FIRST-LAST`."""
RESEND = "dlq_resend"
"""The header of an order to run the content of a letter once more: the letter's position."""
MARKS = {"dlq_replayed": "replayed", "dlq_dropped": "dropped"}

Origin = tuple[str, int, int]
"""Topic, partition and offset of the record that could not be read."""
At = tuple[int, int]
"""Partition and offset on `dead.letters`."""


@dataclass(frozen=True, slots=True)
class BuriedRecord:
    """A letter's description of the record that it is a copy of."""

    origin: Origin
    group: str
    error: str
    message: str
    cut: bool
    """True if it holds only a part of the buried record."""


@dataclass(frozen=True, slots=True)
class SkipOrder:
    """A range of one partition that a group was told to pass over."""

    group: str
    topic: str
    partition: int
    first: int
    last: int
    reason: str
    by: str = ""

    def headers(self) -> Headers:
        """Return the headers of the order."""
        fields = {
            SKIP: f"{self.topic} {self.partition}@{self.first}-{self.last}",
            "dlq_group": self.group,
            "dlq_reason": self.reason,
            "dlq_by": self.by,
        }
        return _written(fields)


@dataclass(frozen=True, slots=True)
class ResendOrder:
    """Permission to treat the content of one letter as new, though it was requested before."""

    letter: At
    sha256: str
    """The digest of the record that is sent again, by `content_digest`."""
    by: str

    def headers(self) -> Headers:
        """Return the headers of the order."""
        place = f"{self.letter[0]}@{self.letter[1]}"
        return _written({RESEND: place, "dlq_sha256": self.sha256, "dlq_by": self.by})


@dataclass(frozen=True, slots=True)
class LetterMark:
    """The state of a letter that was replayed or dropped."""

    state: str
    """One of the values of MARKS."""
    letter: At
    marked_at: str
    by: str

    def headers(self) -> Headers:
        """Return the headers of the mark."""
        name = next(name for name, state in MARKS.items() if state == self.state)
        place = f"{self.letter[0]}@{self.letter[1]}"
        return _written({name: place, "dlq_marked_at": self.marked_at, "dlq_by": self.by})


FORMS: Mapping[frozenset[str], str] = {
    frozenset({SKIP, "dlq_group", "dlq_reason", "dlq_by"}): SKIP,
    frozenset({RESEND, "dlq_sha256", "dlq_by"}): RESEND,
    **{frozenset({mark, "dlq_marked_at", "dlq_by"}): mark for mark in MARKS},
    # Written at commit c73aa9c, without the author.
    **{frozenset({mark, "dlq_marked_at"}): mark for mark in MARKS},
}
"""The header names of each order, and the one that determines its kind."""


def parse_dead_letter_record(
    record: Record,
) -> BuriedRecord | SkipOrder | ResendOrder | LetterMark | None:
    """Parse a record of `dead.letters`; None if it is malformed or of an unknown kind."""
    headers = record.headers or []
    fields = texts(headers)
    if LETTER in fields:
        return _letter(fields)
    kind = FORMS.get(frozenset(fields)) if len(fields) == len(headers) else None
    if kind is None or record.value is not None:
        return None
    return _skip(fields) if kind == SKIP else _of_letter(kind, fields)


def buried_topic(record: Record) -> str | None:
    """Return the topic that a letter's record was on; None for other records."""
    return texts(record.headers).get(LETTER)


def _letter(fields: Mapping[str, str]) -> BuriedRecord | None:
    partition, offset = (whole_number(fields.get(f"dlq_{x}", "")) for x in ("partition", "offset"))
    if partition is None or offset is None:
        return None
    group, error, message = (fields.get(f"dlq_{x}", "") for x in ("group", "error", "message"))
    return BuriedRecord(
        (fields[LETTER], partition, offset), group, error, message, "dlq_cut" in fields
    )


def _skip(fields: Mapping[str, str]) -> SkipOrder | None:
    match = RANGE.fullmatch(fields[SKIP])
    numbers = [whole_number(text) for text in match.groups()[1:]] if match else [None]
    partition, first, last = numbers if len(numbers) == 3 else (None, None, None)
    if match is None or partition is None or first is None or last is None:
        return None
    return SkipOrder(
        fields["dlq_group"],
        match[1],
        partition,
        first,
        last,
        fields["dlq_reason"],
        fields["dlq_by"],
    )


def _of_letter(kind: str, fields: Mapping[str, str]) -> ResendOrder | LetterMark | None:
    at, by = parse_place(fields[kind]), fields.get("dlq_by", "")
    if at is None:
        return None
    if kind == RESEND:
        return ResendOrder(at, fields["dlq_sha256"], by)
    return LetterMark(MARKS[kind], at, fields["dlq_marked_at"], by)


def parse_place(text: str) -> At | None:
    """Parse a partition and offset; None if the text has another form."""
    found = PLACE.fullmatch(text)
    numbers = [whole_number(number) for number in found.groups()] if found else []
    match numbers:
        case [int(partition), int(offset)]:
            return partition, offset
    return None


def content_digest(topic: str, partition: int, key: bytes | None, value: bytes | None) -> str:
    """Return the digest of a record that is sent again, and of its destination."""
    parts = [topic.encode(), b"%d" % partition, key, value]
    sizes = b"".join(b"%d " % (-1 if part is None else len(part)) for part in parts)
    return sha256(sizes + b"".join(part or b"" for part in parts)).hexdigest()


def resent_from(record: Record) -> At | None:
    """Return the letter that a record claims to come from; its producer could write any claim."""
    named = [value for name, value in record.headers or [] if name == REPLAYED_FROM]
    if len(named) != 1:
        return None
    return parse_place((named[0] or b"").decode("utf-8", "replace").rpartition(" ")[2])


def is_resent(record: Record, resends: Mapping[At, str]) -> bool:
    """Return True if an authorised order exists for this very record.

    `resends` has the `content_digest` of each ordered letter.
    """
    at = resent_from(record)
    return at is not None and resends.get(at) == content_digest(
        record.topic, record.partition, record.key, record.value
    )


def _written(told: Mapping[str, str]) -> Headers:
    return [(name, value.encode(errors="replace")) for name, value in told.items()]
