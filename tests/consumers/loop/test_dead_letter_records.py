"""A dead letter is never an order, whatever headers its record had."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.replay.dead_letter_actions import replay_letters, replayed_headers
from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letter_records import (
    FORMS,
    BuriedRecord,
    LetterMark,
    ResendOrder,
    SkipOrder,
    parse_dead_letter_record,
)
from rollcall.consumers.loop.dead_letters import LETTER_BYTES, DeadLetters, SkippedRecords
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import BadBytes
from rollcall.schemas.headers import UNREADABLE, dead_letter_headers
from tests.support.avro_messages import FEW
from tests.support.hand_answers import ask
from tests.support.rig import Rig
from tests.support.whole_log import audited

OURS = [
    *sorted({name for form in FORMS for name in form}),
    "dlq_topic", "dlq_partition", "dlq_offset", "dlq_group", "dlq_cut", "dlq_replayed_from",
    "DLQ_SKIP", " dlq_skip", "given_dlq_skip", "ce_id", "traceparent",
]  # fmt: skip
VALUES = [
    b"t.rollout.events 0@0-999999", b"t.rollout.requests 0@0-999999", b"0@0", b"0@" + b"9" * 5000,
    b"t.agents", b"", b"-1", b"\xff", b"t.rollout.events 0@" + b"9" * 5000 + b"-1",
]  # fmt: skip
ORDERS = [
    SkipOrder("t.agents", "t.rollout.events", 0, 3, 9, "why", "ann"),
    ResendOrder((1, 2), "ab" * 32, "ann"),
    LetterMark("replayed", (0, 7), "2026-01-01", "ann"),
    LetterMark("dropped", (0, 7), "2026-01-01", "ann"),
]
foreign = st.lists(st.tuples(st.sampled_from(OURS), st.sampled_from(VALUES)), max_size=8)
origins = st.tuples(st.just("t.rollout.requests"), st.integers(0, 9), st.integers(0, 2**40))


def on_letters(headers: Any, value: bytes | None = None) -> Record:
    return Record("t.dead.letters", 0, 0, None, value, 0, headers)


@given(foreign, origins, st.sampled_from([None, b"x"]))
def test_a_buried_record_describes_its_own_origin_despite_its_headers(
    headers: list[tuple[str, bytes]], origin: tuple[str, int, int], value: bytes | None
) -> None:
    written = dead_letter_headers(headers, *origin, 5, "t.agents", BadBytes("short"))
    said = parse_dead_letter_record(on_letters(written, value))

    assert said == BuriedRecord(origin, "t.agents", "BadBytes", "short", cut=False)

    # And after it was sent again and buried once more
    again = replayed_headers(written, "t.dead.letters 0@0")
    written = dead_letter_headers(again, "t.control", 1, 2, 5, "t.models.p", BadBytes("long"))
    said = parse_dead_letter_record(on_letters(written, value))
    assert said == BuriedRecord(("t.control", 1, 2), "t.models.p", "BadBytes", "long", cut=False)


@given(foreign, origins)
def test_an_older_releases_dead_letter_with_copied_headers_is_no_order(
    headers: list[tuple[str, bytes]], origin: tuple[str, int, int]
) -> None:
    ours = dead_letter_headers(None, *origin, 5, "t.agents", BadBytes("short"))

    said = parse_dead_letter_record(on_letters([*headers, *ours]))

    assert isinstance(said, BuriedRecord)
    assert (said.origin, said.group) == (origin, "t.agents")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_is_read_back_as_written_with_its_author(order: Any) -> None:
    assert parse_dead_letter_record(on_letters(order.headers())) == order
    assert order.by == "ann"


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_with_an_extra_header_or_a_value_is_ignored(order: Any) -> None:
    headers = order.headers()

    assert parse_dead_letter_record(on_letters(headers, b"")) is None
    assert parse_dead_letter_record(on_letters([*headers, ("x", b"")])) is None
    assert parse_dead_letter_record(on_letters([*headers, headers[0]])) is None
    assert parse_dead_letter_record(on_letters([*headers, ("dlq_topic", b"t")])) is None


@given(st.lists(st.tuples(st.sampled_from(OURS), st.binary(max_size=30)), max_size=6) | foreign)
def test_a_foreign_record_among_the_dead_letters_raises_nothing(
    headers: list[tuple[str, bytes]],
) -> None:
    said = parse_dead_letter_record(on_letters(headers))

    assert said is None or max(getattr(said, "origin", (0, 0, 0))[1:]) < 2**63


@given(st.lists(foreign, min_size=1, max_size=4))
@FEW
def test_headers_of_requests_give_no_orders(junk: list[list[tuple[str, bytes]]]) -> None:
    # Given open rollouts of others, and junk among the requests with any headers
    rig = Rig()
    for name in ("v0", "v1"):
        ask(rig, name)
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    rig.settle(agents)
    for headers in junk:
        rig.log.append(rig.topics.requests, b"evil", b"junk", 0, headers)
    rig.settle(agents)
    rig.commit(agents)
    agents.source.kill()  # type: ignore[attr-defined]

    # When another worker takes over, and others ask
    ask(rig, "v2")
    heir = rig.agents("a2")
    rig.settle(heir, models)
    rig.commit(heir, models)

    # Then theirs are finished, each piece of junk is on the list, and nothing was ordered
    ends = {t.rollout_id: t.status for t in rig.trajectories()}
    assert [ends[name] for name in ("v0", "v1", "v2")] == ["finished"] * 3
    index = DeadLetterIndex(rig)  # type: ignore[arg-type]
    assert [letter.state for letter in index.letters.values()] == [""] * len(junk)
    assert not index.skips
    skipped = SkippedRecords(rig.log, rig.topics, "t.agents")
    skipped.refresh()
    assert not skipped.skips
    assert not skipped.resends
    assert audited(rig, scorings=()).ok


@pytest.mark.parametrize(
    "headers",
    [
        [(b"\xff\xfe", b"v")],
        [(b"dlq_group", b"t.agents"), (b"\xff", b"v")],
        [("", b"")] * 300_000,
        [("h", None)],
        [("dlq_topic", b"x" * 70_000)],
    ],
    ids=["no-text", "ours-and-no-text", "many-empty-ones", "null", "large"],
)
def test_no_header_prevents_a_records_burial_and_replay(rig: Rig, headers: Any) -> None:
    loop = rig.agents()
    rig.log.append(rig.topics.requests, b"k", b"junk", 0, headers)
    rig.log.append(rig.topics.dead_letters, b"k", b"junk", 0, headers)
    ask(rig, "after")

    rig.settle(loop, rig.models(ScriptedEngine("p", lambda call: "yes")))

    index = DeadLetterIndex(rig)  # type: ignore[arg-type]
    (letter,) = index.letters.values()
    _, record = index.letter_at(letter.place())
    told = record.headers or []
    assert sum(10 + len(name.encode()) + len(value or b"") for name, value in told) < LETTER_BYTES
    assert (UNREADABLE[0] in told) == isinstance(headers[0][0], bytes)
    assert replay_letters(index, [letter], 0, by="ann") == []
    assert DeadLetterIndex(rig).letters[letter.origin].state == "replayed"  # type: ignore[arg-type]
    rig.settle(loop)
    assert audited(rig, scorings=()).ok


def test_an_order_names_the_operator_that_dropped_or_replayed_a_record(rig: Rig) -> None:
    letters = DeadLetters(rig.pen, rig.topics, "t.agents", lambda: 0.0, rig.log)
    letters.bury(Record(rig.topics.requests, 0, 0, b"k", b"v", 0), BadBytes("short"))
    index = DeadLetterIndex(rig)  # type: ignore[arg-type]

    replay_letters(index, list(index.letters.values()), 0, by="ann")

    said = [parse_dead_letter_record(record) for record in rig.log.all(rig.topics.dead_letters)]
    assert [getattr(order, "by", None) for order in said] == [None, "ann", "ann"]
