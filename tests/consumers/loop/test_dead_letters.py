"""Unreadable records are buried, unknown schemas are waited for, skips apply to every reader."""

import json
from hashlib import sha256
from typing import Any

import pytest

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.loop.dead_letter_records import SkipOrder
from rollcall.consumers.loop.dead_letters import KEY_BYTES, LETTER_BYTES, SkippedRecords
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.avro_schemas import canonical, schema_text
from rollcall.schemas.codec import PREFIX, Codec, LocalRegistry
from rollcall.schemas.errors import DeadLetterStorm, Unavailable, UnknownSchema
from rollcall.schemas.headers import Headers
from rollcall.schemas.messages import Control, Event, RolloutRefused, Trajectory
from rollcall.schemas.schema_memory import SchemaMemory, first_in
from tests.support.hand_answers import ask
from tests.support.journals import request
from tests.support.programs import ASKS
from tests.support.rig import InHand, Rig, role_of, source_of

AGENTS = "t.agents"


class Forgetful(LocalRegistry):
    """A registry that denies some ids, as a follower that lags does."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[int] = set()

    def schema_of(self, schema_id: int) -> str:
        if schema_id in self.denied:
            msg = f"no schema has id {schema_id}"
            raise UnknownSchema(msg)
        return super().schema_of(schema_id)


class Denied(Rig):
    """A rollout with an answer under a schema id that the registry denies."""

    def __init__(self) -> None:
        super().__init__()
        self.registry: Any = Forgetful()
        self.codec = Codec(self.registry, clock=self.clock)
        self.models_ = self.models(ScriptedEngine("p", lambda call: "yes"))
        self.id = self.registry.writer_id("x", schema_text(Event).replace(",", ", "))
        self.registry.denied = {self.id}

    def until_answered(self, agents: Loop) -> int:
        """Run until it is asked and answered; return the answer's offset, under the denied id."""
        ask(self)
        self.settle(agents)
        self.settle(self.models_)
        stored = self.log.topics[self.topics.events][0].records
        key, value, at, headers = stored[-1] or pytest.fail("no answer was written")
        assert value is not None
        stored[-1] = key, PREFIX.pack(0, self.id) + value[PREFIX.size :], at, headers
        return len(stored) - 1

    def knows(self) -> None:
        self.registry.denied = set()
        self.clock.pass_by(1.1)


def garbage(rig: Rig, topic: str, count: int) -> None:
    for _ in range(count):
        rig.log.append(topic, b"k", b"{json}", 0)


def letters(rig: Rig, topic: str) -> list[int]:
    """The offsets of a topic's buried records, in the order of the dead letters."""
    told = [dict(r.headers or []) for r in rig.log.all(rig.topics.dead_letters)]
    return [int(of["dlq_offset"]) for of in told if of.get("dlq_topic") == topic.encode()]


def skip(rig: Rig, topic: str, first: int, last: int, group: str = AGENTS) -> None:
    decided = SkipOrder(group, topic, 0, first, last, "written by mistake", "ann")
    rig.pen.send(rig.topics.dead_letters, None, None, partition=0, headers=decided.headers())


def asked_for(rig: Rig) -> dict[str, str]:
    return {t.rollout_id: t.status for t in rig.trajectories()}


def cut_of(headers: Headers | None, what: str) -> tuple[int, str]:
    told = dict(headers or [])
    return int(told[f"dlq_{what}_bytes"]), told[f"dlq_{what}_sha256"].decode()


# Too much of it


def test_a_group_stopped_by_a_storm_skips_it_and_accounts_for_all(
    rig: Rig,
) -> None:
    # Given more garbage among the requests than a group may bury
    ask(rig, "before")
    garbage(rig, rig.topics.requests, 60)
    ask(rig, "after")
    loop = rig.agents()
    with pytest.raises(DeadLetterStorm, match=r"dlq skip t.agents t.rollout.requests 0@FIRST"):
        rig.settle(loop)
    source_of(loop).kill()

    # When an operator decides to skip it
    skip(rig, rig.topics.requests, 1, 60)
    loop, models = rig.agents("a2"), rig.models(ScriptedEngine("p", lambda call: "yes"))
    rig.settle(loop, models)
    rig.commit(loop, models)

    # Then the others run, each skipped one is refused and kept, and the audit has no objection
    refused = [event.body for event in rig.events(RolloutRefused)]
    assert asked_for(rig)["before"] == asked_for(rig)["after"] == "finished"
    assert {b.request_offset for b in refused if isinstance(b, RolloutRefused)} == set(range(1, 61))
    assert set(letters(rig, rig.topics.requests)) == set(range(1, 61))
    report = audit(rig, drained=True, scorings=())
    assert report.ok, report.breaches


def test_a_readable_record_can_be_skipped_for_its_group_only(rig: Rig) -> None:
    for rollout_id in ("a", "b", "c"):
        ask(rig, rollout_id)
    skip(rig, rig.topics.requests, 1, 1)
    skip(rig, rig.topics.requests, 2, 2, group="t.others")
    loop, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))

    rig.settle(loop, models)

    assert asked_for(rig) == {"a": "finished", "b": "refused", "c": "finished"}
    (refused,) = (t for t in rig.trajectories() if t.rollout_id == "b")
    assert (refused.code, refused.reason) == ("skipped", "skipped by ann: written by mistake")


def test_garbage_on_control_stops_no_worker_and_is_buried_once(rig: Rig) -> None:
    # Given much garbage on control
    garbage(rig, rig.topics.control, 60)

    # When two workers read it, and others after every restart
    for n in range(4):
        loops = [rig.agents(f"a{n}.{m}") for m in range(2)]
        rig.settle(*loops)
        for loop in loops:
            source_of(loop).kill()

    # Then there is one dead letter of each, and no storm
    assert letters(rig, rig.topics.control) == list(range(60))


def test_garbage_on_control_hides_no_later_record(rig: Rig) -> None:
    garbage(rig, rig.topics.control, 60)
    rig.order("pause")
    loop = rig.agents()

    assert role_of(loop).control.paused


# Too large


def test_a_record_larger_than_a_dead_letter_is_cut_with_its_digest(rig: Rig) -> None:
    value = b"x" * 2_500_000
    rig.log.append(rig.topics.requests, b"k", value, 0)
    ask(rig, "after")
    loop, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))

    rig.settle(loop, models)

    (letter,) = rig.log.all(rig.topics.dead_letters)
    assert letter.value
    assert value.startswith(letter.value)
    assert cut_of(letter.headers, "value") == (len(value), sha256(value).hexdigest())
    assert asked_for(rig)["after"] == "finished"


@pytest.mark.parametrize("key_bytes", [KEY_BYTES + 1, 1_000_100])
def test_a_key_too_large_for_a_dead_letter_is_cut(rig: Rig, key_bytes: int) -> None:
    key = b"k" * key_bytes
    rig.log.append(rig.topics.requests, key, b"garbage", 0)
    ask(rig, "after")
    loop, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))

    rig.settle(loop, models)

    (letter,) = rig.log.all(rig.topics.dead_letters)
    assert (letter.key, letter.value) == (key[:KEY_BYTES], b"garbage")
    assert cut_of(letter.headers, "key") == (len(key), sha256(key).hexdigest())
    assert sorted(asked_for(rig).values()) == ["finished", "refused"]


def test_a_buried_record_always_fits_and_is_whole_if_possible(rig: Rig) -> None:
    loop = rig.agents()
    for size in (0, 10, LETTER_BYTES - 3000, LETTER_BYTES, 3 * LETTER_BYTES):
        headers = [("h", b"v" * 70_000)] if size % 2 else [("h", b"v")]
        rig.log.append(rig.topics.requests, b"k", b"x" * size, 0, headers)

    rig.settle(loop)

    found = rig.log.all(rig.topics.dead_letters)
    sizes = [
        len(r.key or b"") + len(r.value or b"") + sum(len(n) + len(v) for n, v in r.headers or [])
        for r in found
    ]
    assert len(found) == 5
    assert max(sizes) <= LETTER_BYTES
    assert [len(r.value or b"") for r in found][:3] == [0, 10, LETTER_BYTES - 3000]


# Records that one reader can decode and another cannot


def test_an_event_with_an_unknown_schema_holds_its_partition(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig = Denied()
    agents = rig.agents()
    offset = rig.until_answered(agents)
    heir = rig.agents("a2")
    source_of(agents).kill()

    for _ in range(5):
        rig.commit(heir)
    assert letters(rig, rig.topics.events) == []
    assert (rig.committed(AGENTS, rig.topics.events) or 0) <= offset
    said = [line for line in capsys.readouterr().out.splitlines() if "journal_held" in line]
    assert len(said) == 1
    assert f"no schema has id {rig.id}" in said[0]
    assert f"rollcall dlq skip t.agents t.rollout.events 0@{offset}" in said[0]

    rig.knows()
    rig.settle(heir, rig.models_)
    assert asked_for(rig) == {"r": "finished"}
    assert audit(rig, drained=True, scorings=()).ok


def test_a_takeover_also_waits_for_a_schema_of_a_folded_event() -> None:
    # Given a worker that knew the schema, and has committed behind the answer
    rig = Denied()
    agents = rig.agents()
    rig.until_answered(agents)
    ask(rig, "other", "tests.support.programs:walks")
    source_of(agents).kill()
    rig.registry.denied = set()
    agents = rig.agents("a2")
    rig.settle(agents, rig.models_)
    rig.commit(agents)
    source_of(agents).kill()

    # When another takes over that does not, then it waits and forgets nothing
    rig.registry.denied = {rig.id}
    rig.codec = Codec(rig.registry, clock=rig.clock)
    for topic, of in ((rig.topics.events, Event), (rig.topics.trajectories, Trajectory)):
        rig.codec.prepare(topic, of)
    heir = rig.agents("a3")
    before = rig.committed(AGENTS, rig.topics.events)
    for _ in range(3):
        rig.commit(heir)
    assert rig.committed(AGENTS, rig.topics.events) == before

    rig.knows()
    rig.settle(heir, rig.models_)
    assert set(role_of(heir).owned[0].journal.open) == {"other"}


def test_a_skipped_journal_entry_counts_for_no_reader() -> None:
    # Given a partition that is held by an event whose schema is denied
    rig = Denied()
    agents = rig.agents()
    offset = rig.until_answered(agents)
    source_of(agents).kill()
    agents = rig.agents("a2")
    rig.settle(agents)

    # When it is skipped, and the schema becomes known only then
    source_of(agents).kill()
    skip(rig, rig.topics.events, offset, offset)
    agents = rig.agents("a3")
    rig.settle(agents)
    rig.knows()
    rig.clock.pass_by(500)
    rig.settle(agents, rig.models_)
    rig.clock.pass_by(1)
    rig.settle(agents, rig.models_)

    # Then the call was asked again, and every reader of the journal agrees
    (trajectory,) = rig.trajectories()
    assert (trajectory.status, trajectory.failures) == ("finished", 1)
    assert letters(rig, rig.topics.events) == [offset]
    report = audit(rig, drained=True, scorings=())
    assert report.ok, report.breaches


def test_an_event_buried_by_another_release_stays_buried(rig: Rig) -> None:
    # Given a readable answer that the agents have a dead letter of
    loop, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    ask(rig)
    rig.settle(loop)
    rig.settle(models)
    offset = rig.log.bounds(rig.topics.events)[0][1] - 1
    source_of(loop).kill()
    told = {"topic": rig.topics.events, "partition": 0, "offset": offset, "group": AGENTS}
    headers = [(f"dlq_{name}", str(value).encode()) for name, value in told.items()]
    rig.pen.send(rig.topics.dead_letters, b"r", b"its bytes", headers=headers)

    # When another worker reads the journal
    loop = rig.agents("a2")
    rig.settle(loop)

    # Then it does not count the answer, and no second dead letter is written
    assert rig.trajectories() == []
    assert len(rig.log.all(rig.topics.dead_letters)) == 1


@pytest.mark.parametrize(
    "value", [b"{json}", None, b"\0\0\0\0\1\2", b"\0\0"], ids=["json", "null", "short", "cut"]
)
def test_permanently_unreadable_bytes_are_buried_and_the_journal_goes_on(
    rig: Rig, value: bytes | None
) -> None:
    rig.registry.writer_id("x", schema_text(Event))
    rig.log.append(rig.topics.events, b"k", value, 0)
    ask(rig)
    loop, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))

    rig.settle(loop, models)

    assert letters(rig, rig.topics.events) == [0]
    assert asked_for(rig) == {"r": "finished"}


def test_an_event_with_another_records_schema_holds_its_partition(rig: Rig) -> None:
    rig.write(rig.topics.events, "k", Control("cancel"), 0)
    loop = rig.agents()

    rig.settle(loop)

    assert letters(rig, rig.topics.events) == []
    source_of(loop).kill()
    skip(rig, rig.topics.events, 0, 0)
    rig.settle(rig.agents("a2"))
    assert letters(rig, rig.topics.events) == [0]


@pytest.mark.parametrize("instead", [Control, Event], ids=["another-record", "swapped-fields"])
def test_a_registry_with_other_ids_loses_no_journal_event(rig: Rig, instead: type) -> None:
    # Given rollouts with unfolded answers, and a registry that reassigns a schema id
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for name in ("a", "b"):
        ask(rig, name)
    rig.settle(agents)
    rig.settle(models)
    rig.commit(agents)
    source_of(agents).kill()
    texts = rig.registry._texts
    at = texts.index(schema_text(Event))
    right, texts[at] = texts[at], swapped_fields(schema_text(instead))

    # When a worker starts, which finds the id's former schema in the log
    tied: dict[int, str] = {}
    SchemaMemory(first_in(tied)).tie(at + 1, canonical(Event))
    rig.codec = Codec(rig.registry, clock=rig.clock, memory=SchemaMemory(first_in(tied)))
    held = rig.agents("a2")
    for _ in range(3):
        rig.settle(held)
        rig.clock.pass_by(11)
    rig.commit(held)
    source_of(held).kill()

    # Then it waits, and when the registry's data is back every rollout ends as it would have
    assert letters(rig, rig.topics.events) == []
    assert asked_for(rig) == {}
    texts[at] = right
    rig.codec = Codec(rig.registry, clock=rig.clock, memory=SchemaMemory(first_in(tied)))
    rig.settle(rig.agents("a3"), models)
    assert asked_for(rig) == {"a": "finished", "b": "finished"}


def swapped_fields(text: str) -> str:
    """A schema of the same record, in which two fields of one type have changed their places."""
    schema = json.loads(text)
    same = [n for n, field in enumerate(schema["fields"]) if field["type"] == "string"][:2]
    if len(same) == 2:
        fields, (one, other) = schema["fields"], same
        fields[one], fields[other] = fields[other], fields[one]
    else:
        schema["fields"].reverse()
    return json.dumps(schema)


# Knowledge of dead letters


def test_only_new_dead_letters_are_read(rig: Rig) -> None:
    read: list[int] = []

    class Counting(SkippedRecords):
        def _take(self, headers: Headers | None) -> None:
            read.append(1)
            super()._take(headers)

    skipped = Counting(rig.log, rig.topics, AGENTS)
    for n in range(3):
        skip(rig, rig.topics.requests, n, n)
        skipped.refresh()
        skipped.refresh()

    assert len(read) == 3
    assert [s.first for s in skipped.skips[rig.topics.requests, 0]] == [0, 1, 2]


def test_all_dead_letters_are_read_before_a_group_is_joined(rig: Rig) -> None:
    for _ in range(3):
        rig.log.append(rig.topics.dead_letters, b"k", b"v" * 100, 0)

    loop = rig.agents()

    assert loop.dead_letters.skipped._read[0] == 3
    assert rig.log.group(AGENTS).members == [source_of(loop)]


def test_dead_letters_are_read_after_an_assignment_without_delaying_records(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = rig.loop(role := InHand("t.control"), rig.log.publisher(), "g")
    loop.turn(0.0)
    refreshed: list[int] = []
    monkeypatch.setattr(SkippedRecords, "refresh", lambda self: refreshed.append(len(role.seen)))
    rig.order("pause", reason="a record")
    loop.turn(0.0)

    assert (role.seen, refreshed) == ([(0, 0)], [])


def test_no_record_is_handed_over_while_dead_letters_cannot_be_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once in a while and not for every record: a question may take ten seconds."""
    loop = rig.loop(role := InHand("t.control"), rig.log.publisher(), "g")
    asked: list[int] = []

    def away(_: SkippedRecords) -> None:
        asked.append(1)
        raise Unavailable

    with monkeypatch.context() as patched:
        patched.setattr(SkippedRecords, "refresh", away)
        rig.order("pause", reason="a record")
        for _ in range(5):
            loop.turn(0.0)
        assert (role.seen, len(asked)) == ([], 1)
    rig.commit(loop)
    assert role.seen == [(0, 0)]


def test_a_partition_waiting_for_its_schema_blocks_no_other() -> None:
    rig = Rig(partitions=2)
    registry: Any = Forgetful()
    rig.codec = Codec(registry, clock=rig.clock)
    topic = rig.topics.steps
    unknown = registry.writer_id("x", schema_text(Control).replace(",", ", "))
    registry.denied = {unknown}
    word = rig.codec.encode("t.control", Control("pause"))
    rig.log.append(topic, b"k", word[:1] + unknown.to_bytes(4, "big") + word[5:], 0)
    role = InHand(topic)
    role.journals = [topic]
    loop = rig.loop(role, rig.log.publisher(), "g")
    for n in range(3):
        rig.log.append(topic, b"k", word, 1)
        loop.turn(0.0)
        assert role.seen == [(1, offset) for offset in range(n + 1)]
    assert loop.partitions[topic, 0].away


def test_a_skip_keeps_its_author_and_reason_after_retention(rig: Rig) -> None:
    skipped = SkippedRecords(rig.log, rig.topics, AGENTS)
    skip(rig, rig.topics.requests, 0, 0)
    skipped.refresh()
    decided = SkipOrder(AGENTS, rig.topics.steps, 3, 4, 5, "zu groß ✓", "änne")
    rig.pen.send(rig.topics.dead_letters, None, None, partition=0, headers=decided.headers())
    rig.log.delete_before(rig.topics.dead_letters, 0, 1)

    skipped.refresh()

    assert skipped.skips[rig.topics.steps, 3] == [decided]


def test_a_request_skipped_while_agents_are_paused_is_refused_on_resume(
    rig: Rig,
) -> None:
    loop = rig.agents()
    rig.settle(loop)
    source_of(loop).kill()
    rig.order("pause")
    rig.ask(request("r", ASKS))
    skip(rig, rig.topics.requests, 0, 0)
    loop = rig.agents("a2")
    rig.settle(loop)
    assert rig.trajectories() == []

    rig.order("resume")
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert asked_for(rig) == {"r": "refused"}
