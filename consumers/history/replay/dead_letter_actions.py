"""Replays dead letters to their original topics, marks those replayed or dropped, and moves a group
past records, so that an unreadable range of a topic does not block it for good.

The decision to skip is written to `dead.letters`; the group's workers read it at each assignment,
and bury the records that they skip, so that none is lost and they can be replayed. A skipped
request ends as refused; a skipped entry of the journal counts for no reader.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rollcall.consumers.history.reading.history import History, LiveHistory
from rollcall.consumers.history.reading.rate_limit import RateLimit
from rollcall.consumers.history.reading.record_lines import topic_named
from rollcall.consumers.history.replay.dead_letter_index import (
    DeadLetter,
    DeadLetterIndex,
    offset_range,
)
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_between
from rollcall.consumers.loop.dead_letter_records import (
    LetterMark,
    ResendOrder,
    SkipOrder,
    content_digest,
)
from rollcall.producers.publisher import Publisher, flush_all
from rollcall.schemas.errors import Refused, RollcallError, TooLarge, WireError
from rollcall.schemas.headers import GIVEN_PREFIX, REPLAYED_FROM, Headers, reserved
from rollcall.schemas.names import unknown_name

FLUSH_S = 30.0
AT_ONCE = 100
"""Letters replayed before they are marked; a crash in between sends them once more."""


class NotReplayed(RollcallError):
    """Raised for letters whose topic is gone, or would refuse them."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The letters of a replay, sorted by what can be done with them."""

    letters: list[DeadLetter]
    """The letters that can be replayed."""
    passed: int
    """The number of letters that were replayed or dropped before."""
    refused: list[tuple[DeadLetter, str]]
    """The letters that cannot be replayed, with the reasons."""


def plan_replay(index: DeadLetterIndex, chosen: Sequence[DeadLetter], *, again: bool) -> ReplayPlan:
    """Separate the letters that can be replayed from the others; raises Unavailable."""
    log = index.history.log
    counts = {name: log.partitions(name) for name in log.topic_names()}
    due = [x for x in chosen if not x.state or (again and x.state == "replayed")]
    lost = [x for x in due if x.origin[1] >= counts.get(x.origin[0], 0)]
    refused = [(x, f"go back: {x.origin[0]} {x.origin[1]} is not there") for x in lost]
    refused += [
        (
            x,
            f"be replayed: it is not whole; what it was cut from is at {x.came_from()} until "
            "retention takes it",
        )
        for x in due
        if x.cut
    ]
    hopeless = [letter for letter, _ in refused]
    fit = [letter for letter in due if letter not in hopeless]
    return ReplayPlan(fit, len(chosen) - len(due), refused)


def replay_letters(
    index: DeadLetterIndex, letters: Sequence[DeadLetter], rate: float, *, by: str = ""
) -> list[tuple[DeadLetter, str]]:
    """Send and mark letters in batches; return those that their topic refuses, with the reasons.

    At most `rate` a second; 0 is no limit. Raises DeliveryFailed.
    """
    sending = _Sending(index, by)
    by_place = {letter.at: letter for letter in letters}
    pace, most = RateLimit(rate), 1 if rate else AT_ONCE
    batch: list[tuple[DeadLetter, Record]] = []
    for record in index.at_places(by_place):
        batch.append((by_place[record.partition, record.offset], record))
        if len(batch) >= most:
            pace.wait()
            sending.send(batch)
            batch = []
    sending.send(batch)
    return sending.refused


class _Sending:
    """Sends letters: first the permission to treat each as new, then the record, then the mark."""

    def __init__(self, index: DeadLetterIndex, by: str) -> None:
        self.index = index
        self.by = by
        self.out = index.history.log.publisher()
        self.refused: list[tuple[DeadLetter, str]] = []

    def send(self, batch: Sequence[tuple[DeadLetter, Record]]) -> None:
        """Send a few letters and wait for their acks; raises DeliveryFailed."""
        for letter, record in batch:
            digest = content_digest(*letter.origin[:2], record.key, record.value)
            _order(self.index, self.out, letter, ResendOrder(letter.at, digest, self.by).headers())
        _flush(self.out)
        sent = [letter for letter, record in batch if self._sent(letter, record)]
        _mark(self.index, self.out, "replayed", sent, self.by)

    def _sent(self, letter: DeadLetter, record: Record) -> bool:
        topic, partition, _ = letter.origin
        headers = replayed_headers(record.headers or [], f"{self.index.topic} {letter.place()}")
        try:
            self.out.send(topic, record.key, record.value, partition=partition, headers=headers)
        except TooLarge as error:
            self.refused.append((letter, f"be replayed: {error}"))
            return False
        return True


def replayed_headers(headers: Headers, from_: str) -> Headers:
    """Return the headers that the record was buried with, and the position of the letter.

    Reserved headers are left out, even if the record came with them.
    """
    kept = [(n, value) for n, value in headers if not reserved(n.removeprefix(GIVEN_PREFIX))]
    return [*kept, (REPLAYED_FROM, from_.encode())]


def drop_letters(index: DeadLetterIndex, letters: Sequence[DeadLetter], *, by: str = "") -> None:
    """Mark letters as dropped; their bytes are deleted by retention.

    Raises DeliveryFailed.
    """
    _mark(index, index.history.log.publisher(), "dropped", letters, by)


def _mark(
    index: DeadLetterIndex, out: Publisher, state: str, letters: Sequence[DeadLetter], by: str
) -> None:
    """Mark letters with a state after all sent records are acked; raises DeliveryFailed."""
    _flush(out)
    at = datetime.now(UTC).isoformat()
    for letter in letters:
        _order(index, out, letter, LetterMark(state, letter.at, at, by).headers())
    _flush(out)


def _order(index: DeadLetterIndex, out: Publisher, letter: DeadLetter, headers: Headers) -> None:
    """Write an order to the partition of the letter, behind it."""
    out.send(index.topic, None, None, partition=letter.at[0], headers=headers)


def _flush(out: Publisher) -> None:
    flush_all(out, FLUSH_S, "records", "they may still arrive")


SKIP_FLUSH_S = 30.0


def decide_skip(
    history: LiveHistory, group: str, topic: str, place: str, *, reason: str, by: str
) -> SkipOrder:
    """Return the order to pass over a range of one partition; raises
    Refused if it is not allowed."""
    if not reason.strip():
        msg = "say why with --reason: it is kept beside what is skipped"
        raise Refused(msg)
    partition, first, last = offset_range(place)
    names = _group(history, group), topic_named(history, topic)
    decided = SkipOrder(*names, partition, first, last, reason, by)
    _require_skippable(history, decided)
    return decided


def write_skip(history: History, decided: SkipOrder) -> None:
    """Write the order for the group; raises DeliveryFailed."""
    out, headers = history.log.publisher(), decided.headers()
    out.send(history.topics.dead_letters, None, None, partition=0, headers=headers)
    then = "whether the range is skipped is not known; ask again"
    flush_all(out, SKIP_FLUSH_S, "records", then)


def _group(history: History, text: str) -> str:
    names = history.log.group_names()
    for name in (text, f"{history.topics.prefix}{text}"):
        if name in names:
            return name
    raise unknown_name("group", text, names)


def _require_skippable(history: LiveHistory, decided: SkipOrder) -> None:
    """Raise Refused for missing offsets, for a range already read, and for the
    journal while it is read."""
    tp = decided.topic, decided.partition
    low, end = history.log.bounds(decided.topic).get(decided.partition, (0, 0))
    if not low <= decided.first <= decided.last < end:
        msg = f"{tp[0]} {tp[1]} holds offsets from {low} to {end - 1}; name a range of these"
        raise Refused(msg)
    committed = history.log.committed(decided.group, decided.topic).get(decided.partition)
    if committed is not None and decided.last < committed:
        msg = f"{decided.group} has come to {tp[0]} {tp[1]}@{committed}, past all of this, already"
        raise Refused(msg)
    if decided.topic == history.topics.events:
        _require_uncounted(history, decided, committed or 0)


def _require_uncounted(history: LiveHistory, decided: SkipOrder, committed: int) -> None:
    """Raise Refused if some worker may have counted an entry of the range."""
    if decided.first < committed:
        msg = (
            f"the agents have counted {decided.topic} {decided.partition} up to {committed}; name "
            f"{decided.partition}@{committed}-{decided.last}"
        )
        raise Refused(msg)
    if history.admin.members([decided.group]):
        msg = (
            f"{decided.group} has workers, and one of them may have read what another cannot; stop "
            "them all before an entry of the journal is skipped"
        )
        raise Refused(msg)


def records_in(history: History, decided: SkipOrder) -> Iterator[Record]:
    """Yield the records in the range; raises Unavailable."""
    bounds = history.log.bounds(decided.topic)
    starts = {(decided.topic, number): end for number, (_, end) in bounds.items()}
    ends = dict(starts)
    tp = decided.topic, decided.partition
    starts[tp], ends[tp] = decided.first, decided.last + 1
    for records in read_between(history.log, starts, ends):
        yield from records


def unreadable_because(history: History, record: Record) -> str:
    """Return why a record cannot be read; empty if it can."""
    kind = history.topics.record_of(record.topic)
    if kind is None:
        return ""
    try:
        history.codec.decode(record.value, kind)
    except WireError as error:
        return f"{type(error).__name__}: {error}"
    return ""
