"""Moves a group past records, so that an unreadable range of a topic does not block it for good.

The decision is written to `dead.letters`; the group's workers read it at each assignment, and bury
the records that they skip, so that none is lost and they can be replayed. A skipped request ends as
refused; a skipped entry of the journal counts for no reader.
"""

from collections.abc import Iterator

from rollcall.consumers.history.reading.history import History, LiveHistory
from rollcall.consumers.history.reading.record_lines import topic_named
from rollcall.consumers.history.replay.dead_letter_index import offset_range
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_between
from rollcall.consumers.loop.dead_letter_records import SkipOrder
from rollcall.producers.publisher import flush_all
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.names import unknown_name

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
