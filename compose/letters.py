"""Dead letters: list them, show one, replay them to where they came from, drop them.

Several processes may have buried one record, and one process several times: what counts is the
record's own place, so such letters are one. Kafka removes prefixes only, therefore what was
replayed or dropped is marked by a small record on `dead.letters` itself, in the partition of the
letter, with a header that names it; listing and replaying honour the marks.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson
from rich.table import Table
from rich.text import Text

from compose.terminal import page, quiet_pipes
from consumers.history.rate_limit import Pace
from consumers.history.record_lines import decoder, envelope
from consumers.history.times import iso, time_ms
from consumers.log.protocols import Record
from consumers.log.reading import to_the_end
from consumers.loop.dead_letters import Skip, skip_of
from producers.publisher import Publisher, flush_all
from schemas.as_json import text_of
from schemas.errors import Refused, RollcallError, TooLarge, WireError
from schemas.headers import DLQ_PREFIX, REPLAYED_FROM, Headers
from schemas.names import unknown

if TYPE_CHECKING:
    from compose.cluster import Cluster

PLACE = re.compile(r"(\d+)@(\d+)(?:-(\d+))?", re.ASCII)
MARKS = {"dlq_replayed": "replayed", "dlq_dropped": "dropped"}
FLUSH_S = 30.0
AT_ONCE = 100
"""Letters replayed before they are marked; a crash in between sends them once more."""
WHY_CHARS = 160

Origin = tuple[str, int, int]
"""Topic, partition and offset of the record that nobody could read."""
At = tuple[int, int]
"""Partition and offset on `dead.letters`."""


class NotReplayed(RollcallError):
    """Letters whose topic is gone, or would refuse them."""


@dataclass(slots=True)
class Letter:
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
        return f"{self.at[0]}@{self.at[1]}"

    def came_from(self) -> str:
        topic, partition, offset = self.origin
        return f"{topic} {partition}@{offset}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant: those at these places that also pass the filters."""

    places: tuple[tuple[int, int, int], ...]
    """Partition, first and last offset; empty is everywhere."""
    source: str
    error: str
    since: str

    def takes(self, letter: Letter, prefix: str, since_ms: int | None) -> bool:
        named = any(
            p == at[0] and a <= at[1] <= b for p, a, b in self.places for at in letter.copies
        )
        return (
            (named or not self.places)
            and (not self.source or letter.origin[0] in (self.source, f"{prefix}{self.source}"))
            and self.error in ("", letter.error)
            and (since_ms is None or letter.buried_ms >= since_ms)
        )


def choice_of(places: Iterable[str], *, source: str, error: str, since: str, every: bool) -> Choice:
    """What was chosen; raises Refused for nothing at all and for what is no place."""
    ranges = tuple(range_of(text) for text in places)
    if not (ranges or source or error or since or every):
        msg = (
            "no letters are chosen: name PARTITION@OFFSET, or --source, --error, --since, or --all"
        )
        raise Refused(msg)
    return Choice(ranges, source, error, since)


def range_of(text: str) -> tuple[int, int, int]:
    """Partition, first and last offset of a place; raises Refused for what is none."""
    found = PLACE.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no place; give PARTITION@OFFSET or PARTITION@FIRST-LAST, such as 0@12"
        raise Refused(msg)
    first = int(found[2])
    return int(found[1]), first, int(found[3] or first)


# The box


class Box:
    """The letters that are there, without their values, and what was done with them."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.topic = cluster.topics.dead_letters
        self.letters: dict[Origin, Letter] = {}
        self.at: dict[At, Letter] = {}
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
                self._take(record)
        for state, at in marks:
            if at in self.at:
                self.at[at].state = state

    def records(self) -> Iterator[Record]:
        with closing(self.cluster.log.reader([self.topic])) as reader:
            yield from to_the_end(reader)

    def _take(self, record: Record) -> None:
        told = {name: text_of(value) or "" for name, value in record.headers or []}
        try:
            origin = told["dlq_topic"], int(told["dlq_partition"]), int(told["dlq_offset"])
        except (KeyError, ValueError):
            self.foreign += 1
            return
        at, group = (record.partition, record.offset), told.get("dlq_group", "")
        letter = self.letters.get(origin)
        if letter is None:
            error, message = told.get("dlq_error", ""), told.get("dlq_message", "")
            cut = "dlq_cut" in told
            letter = Letter(at, origin, record.timestamp_ms, error, message, [], cut=cut)
            self.letters[origin] = letter
        letter.copies.append(at)
        letter.groups += [group] if group not in letter.groups else []
        self.at[at] = letter

    def chosen(self, choice: Choice) -> list[Letter]:
        """The letters that are meant, oldest first; raises Refused for names nobody knows."""
        prefix = self.cluster.settings.prefix
        since_ms = time_ms(choice.since, time.time()) if choice.since else None
        there = [name for name in self.cluster.admin.partitions() if name.startswith(prefix)]
        topics = {name.removeprefix(prefix) for name in (*there, *(o[0] for o in self.letters))}
        errors = {error.__name__ for error in WireError.__subclasses__()}
        errors |= {letter.error for letter in self.letters.values()}
        if choice.source and choice.source.removeprefix(prefix) not in topics:
            raise unknown("topic", choice.source, topics)
        if choice.error and choice.error not in errors:
            raise unknown("error", choice.error, errors)
        found = [x for x in self.letters.values() if choice.takes(x, prefix, since_ms)]
        return sorted(found, key=lambda letter: (letter.buried_ms, letter.at))


def mark_of(record: Record) -> tuple[str, At] | None:
    """What a mark says about which letter; None for a letter."""
    for name, value in record.headers or []:
        found = PLACE.fullmatch(text_of(value) or "") if name in MARKS else None
        if found is not None:
            return MARKS[name], (int(found[1]), int(found[2]))
    return None


# Looking


def show_list(cluster: "Cluster", choice: Choice, *, handled: bool) -> None:
    """Print the letters that wait for somebody, with `handled` the others too."""
    box = Box(cluster)
    found = box.chosen(choice)
    shown = [letter for letter in found if handled or not letter.state]
    with page() as terminal:
        if shown:
            terminal.print(_table(shown, handled=handled))
        terminal.print(_totals(found, box), soft_wrap=True)


def _table(letters: Sequence[Letter], *, handled: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("letter", *(["state"] if handled else []), "when", "from", "who"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    for letter in letters:
        why = f"{letter.error}: {letter.message:.{WHY_CHARS}}"
        state = [letter.state or "waits"] if handled else []
        who = ", ".join(letter.groups)
        when = iso(letter.buried_ms) or ""
        table.add_row(letter.place(), *state, when, letter.came_from(), who, Text(_one_line(why)))
    return table


def _one_line(text: str) -> str:
    """A text without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def _totals(found: Sequence[Letter], box: Box) -> str:
    states = Counter(letter.state for letter in found)
    words = [f"{states['']:,} dead letters waiting"]
    words += [f"{states[s]:,} {s}" for s in MARKS.values() if states[s]]
    words += [f"{box.foreign:,} there that we did not write"] if box.foreign else []
    words += [f"{len(box.skips):,} ranges skipped"] if box.skips else []
    hint = "; look at one with `rollcall dlq show PARTITION@OFFSET`" if states[""] else ""
    return ", ".join(words) + hint


def show(cluster: "Cluster", place: str) -> None:
    """Print one letter with its value; raises Refused where there is none."""
    partition, offset, last = range_of(place)
    if last != offset:
        msg = f"{place!r} names more than one letter; show takes one, such as {partition}@{offset}"
        raise Refused(msg)
    box = Box(cluster)
    letter = box.at.get((partition, offset))
    record = next(_at(box, {(partition, offset)}), None) if letter else None
    if letter is None or record is None:
        there = sorted(letter.place() for letter in box.letters.values())
        raise (
            unknown("dead letter", place, there) if there else Refused("there are no dead letters")
        )
    told = envelope(record) | {"state": letter.state or "waits"}
    told |= decoder(cluster, box.topic)(record)
    with quiet_pipes():
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())


def _at(box: Box, places: set[At]) -> Iterator[Record]:
    """The records at some places, with their values."""
    for record in box.records():
        if (record.partition, record.offset) in places:
            yield record


# Doing


def replay(cluster: "Cluster", choice: Choice, *, yes: bool, again: bool, rate: float) -> None:
    """Send letters to where they came from; raises NotReplayed where some cannot go there."""
    box = Box(cluster)
    found = box.chosen(choice)
    fit = [x for x in found if not x.state or (again and x.state == "replayed")]
    passed = len(found) - len(fit)
    if passed:
        print(f"{_counted(passed)} passed over: replayed or dropped before")
    there = cluster.admin.partitions()
    lost = [x for x in fit if x.origin[1] >= there.get(x.origin[0], 0)]
    for letter in lost:
        print(
            f"{letter.place()} cannot go back: {letter.origin[0]} {letter.origin[1]} is not there"
        )
    for letter in fit:
        if letter.cut:
            lost.append(letter)
            print(
                f"{letter.place()} cannot be replayed: it is not whole; what it was cut from is at "
                f"{letter.came_from()} until retention takes it"
            )
    fit = [letter for letter in fit if letter not in lost]
    if not yes:
        _rehearse("send", fit)
    else:
        lost += _send(box, {letter.at: letter for letter in fit}, rate)
        print(f"{_counted(len(found) - passed - len(lost))} replayed")
    if lost:
        msg = (
            f"{len(lost):,} letters cannot be replayed; `rollcall dlq drop` takes them off the list"
        )
        raise NotReplayed(msg)


def _counted(count: int) -> str:
    return f"{count:,} letter{'' if count == 1 else 's'}"


def _rehearse(verb: str, letters: Sequence[Letter]) -> None:
    for letter in letters:
        print(f"would {verb} {letter.place()}, from {letter.came_from()}")
    print(f"{_counted(len(letters))}; nothing was done, --yes does it")


def _send(box: Box, letters: dict[At, Letter], rate: float) -> list[Letter]:
    """Send and mark, a few at a time; return those that their topic would refuse."""
    out, refused = box.cluster.log.publisher(), []
    pace, sent = Pace(rate), []
    for record in _at(box, set(letters)):
        letter = letters[record.partition, record.offset]
        pace.wait()
        topic, partition, _ = letter.origin
        headers = replayed_headers(record.headers or [], f"{box.topic} {letter.place()}")
        try:
            out.send(topic, record.key, record.value, partition=partition, headers=headers)
        except TooLarge as error:
            print(f"{letter.place()} cannot be replayed: {error}")
            refused.append(letter)
            continue
        sent.append((letter, record.key))
        if len(sent) >= AT_ONCE or rate:
            _mark(box, out, "dlq_replayed", sent)
            sent = []
    _mark(box, out, "dlq_replayed", sent)
    return refused


def replayed_headers(headers: Headers, from_: str) -> Headers:
    """The headers as they were before the record was buried, and where it was sent from."""
    kept = [(name, value) for name, value in headers if not name.startswith(DLQ_PREFIX)]
    return [*kept, (REPLAYED_FROM, from_.encode())]


def drop(cluster: "Cluster", choice: Choice, *, yes: bool) -> None:
    """Mark letters as dropped; their bytes go when retention takes them."""
    box = Box(cluster)
    found = [letter for letter in box.chosen(choice) if letter.state != "dropped"]
    if not yes:
        _rehearse("drop", found)
        return
    _mark(box, cluster.log.publisher(), "dlq_dropped", [(letter, None) for letter in found])
    print(f"{_counted(len(found))} dropped; their bytes stay until retention takes them")


def _mark(
    box: Box, out: Publisher, mark: str, letters: Sequence[tuple[Letter, bytes | None]]
) -> None:
    """Once what was sent is acked, say of each letter what became of it; raises DeliveryFailed."""
    flush_all(out, FLUSH_S, "records", "they may still arrive")
    at = datetime.now(UTC).isoformat().encode()
    for letter, key in letters:
        headers = [(mark, letter.place().encode()), ("dlq_marked_at", at)]
        out.send(box.topic, key, None, partition=letter.at[0], headers=headers)
    flush_all(out, FLUSH_S, "records", "they may still arrive")
