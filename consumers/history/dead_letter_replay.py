"""Sending dead letters again to where they came from, and marking what was sent or dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from consumers.history.dead_letter_index import DeadLetter, DeadLetterIndex
from consumers.history.rate_limit import Pace
from producers.publisher import Publisher, flush_all
from schemas.errors import RollcallError, TooLarge
from schemas.headers import DLQ_PREFIX, REPLAYED_FROM, Headers

FLUSH_S = 30.0
AT_ONCE = 100
"""Letters replayed before they are marked; a crash in between sends them once more."""


class NotReplayed(RollcallError):
    """Letters whose topic is gone, or would refuse them."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What becomes of the letters that were chosen."""

    letters: list[DeadLetter]
    """Those that can go back."""
    passed: int
    """So many were replayed or dropped before."""
    refused: list[tuple[DeadLetter, str]]
    """Those that cannot go back, and why."""


def plan_replay(index: DeadLetterIndex, chosen: Sequence[DeadLetter], *, again: bool) -> ReplayPlan:
    """Part the letters that can go back from the others; raises Unavailable."""
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
    index: DeadLetterIndex, letters: Sequence[DeadLetter], rate: float
) -> list[tuple[DeadLetter, str]]:
    """Send and mark, a few at a time; return those that their topic would refuse, and why.

    At most `rate` a second; 0 is no limit. Raises DeliveryFailed.
    """
    out, refused = index.history.log.publisher(), []
    by_place = {letter.at: letter for letter in letters}
    pace, sent = Pace(rate), []
    for record in index.at_places(by_place):
        letter = by_place[record.partition, record.offset]
        pace.wait()
        topic, partition, _ = letter.origin
        headers = replayed_headers(record.headers or [], f"{index.topic} {letter.place()}")
        try:
            out.send(topic, record.key, record.value, partition=partition, headers=headers)
        except TooLarge as error:
            refused.append((letter, f"be replayed: {error}"))
            continue
        sent.append((letter, record.key))
        if len(sent) >= AT_ONCE or rate:
            _mark(index, out, "dlq_replayed", sent)
            sent = []
    _mark(index, out, "dlq_replayed", sent)
    return refused


def replayed_headers(headers: Headers, from_: str) -> Headers:
    """The headers as they were before the record was buried, and where it was sent from."""
    kept = [(name, value) for name, value in headers if not name.startswith(DLQ_PREFIX)]
    return [*kept, (REPLAYED_FROM, from_.encode())]


def drop_letters(index: DeadLetterIndex, letters: Sequence[DeadLetter]) -> None:
    """Mark letters as dropped; their bytes go when retention takes them.

    Raises DeliveryFailed.
    """
    keyless = [(letter, None) for letter in letters]
    _mark(index, index.history.log.publisher(), "dlq_dropped", keyless)


def _mark(
    index: DeadLetterIndex,
    out: Publisher,
    mark: str,
    letters: Sequence[tuple[DeadLetter, bytes | None]],
) -> None:
    """Once what was sent is acked, say of each letter what became of it; raises DeliveryFailed."""
    flush_all(out, FLUSH_S, "records", "they may still arrive")
    at = datetime.now(UTC).isoformat().encode()
    for letter, key in letters:
        headers = [(mark, letter.place().encode()), ("dlq_marked_at", at)]
        out.send(index.topic, key, None, partition=letter.at[0], headers=headers)
    flush_all(out, FLUSH_S, "records", "they may still arrive")
