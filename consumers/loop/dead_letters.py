"""Dead letters: burying unreadable records, and knowing which were buried or skipped before.

A letter identifies the record that it is a copy of, so `dead.letters` also tells which records a
group passes over: ranges that an operator skipped, and single records of the topics that everybody
reads (the journal, `control`, `policy.versions`). Every reader of the journal applies this;
otherwise two readers, one of which has learned a schema since, would fold two histories.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

import structlog

from rollcall.consumers.log.protocols import Log, Record, TopicPartition
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.dead_letter_records import (
    At,
    BuriedRecord,
    ResendOrder,
    SkipOrder,
    is_resent,
    parse_dead_letter_record,
)
from rollcall.producers.publisher import Publisher
from rollcall.schemas.errors import (
    DeadLetterStorm,
    Skipped,
    StoreUnavailable,
    Unavailable,
    WireError,
)
from rollcall.schemas.headers import Headers, as_given, dead_letter_headers
from rollcall.schemas.topics import Topics

STORM_IN_A_ROW = 50
STORM_SHARE = 0.1
STORM_WINDOW = 1000
STORM_FLUSH_S = 20.0
BREWING_S = 60.0
"""While unreadable records follow one another within this time, nothing behind them is
committed: a restart counts the same ones again and stops too, instead of creeping on."""
LETTER_BYTES = 1_990_000
"""Size limit of a letter's key, value and headers; its topic takes 2 MiB, even of records that
cannot be compressed. A buried record may be larger: its own topic counts the compressed size."""
KEY_BYTES = 65_536
"""The kept length of a key, and of the headers that a record came with."""
HEADER_BYTES = 10
"""The most bytes of a header besides its name and value; either may be empty."""
log = structlog.get_logger()


@dataclass(slots=True)
class SkippedRecords:
    """The records that a group passes over, according to `dead.letters`."""

    log: Log
    topics: Topics
    group: str
    skips: dict[TopicPartition, list[SkipOrder]] = field(default_factory=dict)
    places: set[tuple[str, int, int]] = field(default_factory=set)
    """Records of the topics that everybody reads for which this group has written a letter."""
    resends: dict[At, str] = field(default_factory=dict)
    """The letters whose content is to run once more, with its digest; for every group."""
    _read: dict[int, int] = field(default_factory=dict)
    _events: str = ""
    _of_everybody: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        topics = self.topics
        self._events = topics.events
        self._of_everybody = topics.events, topics.control, topics.versions

    def refresh(self) -> None:
        """Read the records written since the last call; raises Unavailable."""
        topic = self.topics.dead_letters
        bounds = self.log.bounds(topic)
        if {number: end for number, (_, end) in bounds.items()} == self._read:
            return
        starts = {(topic, n): max(low, self._read.get(n, 0)) for n, (low, _) in bounds.items()}
        for record in read_all(self.log, [topic], starts):
            self._read[record.partition] = record.offset + 1
            self._take(record)
        for number, (_, end) in bounds.items():
            self._read[number] = max(end, self._read.get(number, 0))

    def _take(self, record: Record) -> None:
        entry = parse_dead_letter_record(record)
        if isinstance(entry, ResendOrder):
            self.resends[entry.letter] = entry.sha256
        elif isinstance(entry, SkipOrder) and entry.group == self.group:
            self.skips.setdefault((entry.topic, entry.partition), []).append(entry)
        elif isinstance(entry, BuriedRecord) and entry.group == self.group:
            self.places |= {entry.origin} if entry.origin[0] in self._of_everybody else set()

    def is_resent_by_order(self, record: Record) -> bool:
        """Return True if an operator ordered that this record of a letter be treated as new."""
        return is_resent(record, self.resends)

    def check(self, record: Record) -> None:
        """Raise Skipped for a record that is passed over."""
        for skip in self.skips.get((record.topic, record.partition), ()):
            if skip.first <= record.offset <= skip.last:
                msg = f"skipped by {skip.by or 'somebody'}: {skip.reason}"
                raise Skipped(msg)
        if record.topic == self._events and place_of(record) in self.places:
            msg = "there is a dead letter of it, so no reader counts it"
            raise Skipped(msg)

    def counted(self, records: Iterable[Record]) -> list[Record]:
        """Return the records without journal entries that are passed over."""
        if not self.skips and not self.places:
            return list(records)
        return [record for record in records if not self._uncounted(record)]

    def _uncounted(self, record: Record) -> bool:
        if record.topic != self._events:
            return False
        try:
            self.check(record)
        except Skipped:
            return True
        return False


def skipped_in_journal(log_: Log, topics: Topics) -> SkippedRecords:
    """Return what readers of the journal pass over; raises Unavailable."""
    skipped = SkippedRecords(log_, topics, topics.group("agents"))
    skipped.refresh()
    return skipped


def place_of(record: Record) -> tuple[str, int, int]:
    """Return the position that identifies a record."""
    return record.topic, record.partition, record.offset


def log_unavailable(topic: str, error: Unavailable) -> None:
    """Log which service is unavailable that a topic's records are read with; one
    event name for all callers."""
    away = "store_unavailable" if isinstance(error, StoreUnavailable) else "registry_unavailable"
    log.warning(away, topic=topic, error=str(error))


def log_held_partition(record: Record, error: WireError, remedy: str) -> None:
    """Log that a record holds its partition, and the remedy; one event name for all callers."""
    log.warning(
        "journal_held",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        error=str(error),
        remedy=remedy,
    )


class DeadLetters:
    """Buries unreadable records, and stops the worker when they become a storm."""

    def __init__(
        self,
        publisher: Publisher,
        topics: Topics,
        group: str,
        clock: Callable[[], float],
        log_: Log,
    ) -> None:
        self.publisher = publisher
        self.clock = clock
        self.topic = topics.dead_letters
        self.group = group
        self.skipped = SkippedRecords(log_, topics, group)
        self.in_a_row = 0
        self.recent: deque[bool] = deque(maxlen=STORM_WINDOW)
        self._last = 0.0

    def storm_possible(self) -> bool:
        """Return True if the unreadable records may become a storm."""
        return self.in_a_row > 1 and self.clock() < self._last + BREWING_S

    def read(self) -> None:
        """Note one more readable record."""
        self.in_a_row = 0
        self.recent.append(False)

    def bury(self, record: Record, error: WireError) -> None:
        """Write the original bytes, key and headers, and close the record: it waits for that ack.

        Records that an operator skipped do not count towards a storm. Raises DeadLetterStorm.
        """
        if isinstance(error, Skipped):
            self._write_once(record, error)
        else:
            self._write(record, error)
            self._stop_in_storm(record, error)
        record.closed = True

    def _stop_in_storm(self, record: Record, error: WireError) -> None:
        self.in_a_row += 1
        self._last = self.clock()
        self.recent.append(True)
        share = sum(self.recent) / STORM_WINDOW
        if self.in_a_row > STORM_IN_A_ROW or share > STORM_SHARE:
            self.publisher.flush(STORM_FLUSH_S)
            place = f"{record.topic} {record.partition}@{record.offset}"
            msg = (
                f"{self.in_a_row} unreadable records in a row, {share:.0%} of the last "
                f"{STORM_WINDOW}, last on {place}: {error}; look at them with "
                f"`rollcall dlq list --source {record.topic}` and stop their writer before this "
                "group is started again: it would stop again here. `rollcall dlq skip "
                f"{self.group} {record.topic} {record.partition}@FIRST-LAST` takes it past them"
            )
            raise DeadLetterStorm(msg)

    def bury_once(self, found: Iterable[tuple[Record, WireError]]) -> None:
        """Bury records that many workers read, except those that this group has buried before.

        They do not count towards a storm: readers without a group cannot be moved past them.
        """
        try:
            self.skipped.refresh()
        except Unavailable as away:
            log.warning("dead_letters_not_read", error=str(away))  # two letters count as one
        for record, error in found:
            self._write_once(record, error)

    def _write_once(self, record: Record, error: WireError) -> None:
        if place_of(record) not in self.skipped.places:
            self._write(record, error)
            self.skipped.places.add(place_of(record))

    def _write(self, record: Record, error: WireError) -> None:
        added = dead_letter_headers(
            None,
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            self.group,
            error,
        )
        key, value, headers = fit_letter(record, added)
        self.publisher.send(self.topic, key, value, headers=headers, cause=record)
        log.warning(
            "record_buried",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            error=type(error).__name__,
        )


def fit_letter(record: Record, added: Headers) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a letter, each cut if the letter would be too large.

    For each cut part, headers state the size and SHA-256 of the whole.
    """
    given = as_given(record.headers)
    cut: Headers = []
    if _size(given) > KEY_BYTES:
        whole = b"".join(name.encode() + (value or b"") for name, value in given)
        cut += _cut("headers", whole)
        given = []
    key = record.key
    if key is not None and len(key) > KEY_BYTES:
        cut += _cut("key", key)
        key = key[:KEY_BYTES]
    headers = [*given, *added]
    value = record.value
    room = LETTER_BYTES - len(key or b"") - _size(headers)
    if value is not None and len(value) > room:
        cut += _cut("value", value)
        # Leave room for the headers that describe the cut.
        value = value[: room - KEY_BYTES]
    return key, value, [*headers, *cut]


def _cut(what: str, whole: bytes) -> Headers:
    return [
        ("dlq_cut", what.encode()),
        (f"dlq_{what}_bytes", str(len(whole)).encode()),
        (f"dlq_{what}_sha256", sha256(whole).hexdigest().encode()),
    ]


def _size(headers: Iterable[tuple[str, bytes]]) -> int:
    return sum(HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in headers)
