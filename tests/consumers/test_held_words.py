"""Control records under a wrong schema: the registry may be wrong, so they wait."""

import pytest
from structlog.testing import capture_logs

from rollcall.consumers.loop.dead_letter_records import SkipOrder
from rollcall.consumers.loop.decode_in_order import PATIENCE_S
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.control import send_control
from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.codec import PREFIX, Codec
from rollcall.schemas.messages import Control, Event, PolicyVersion, RolloutStarted
from tests.support.hand_answers import ask
from tests.support.rig import Rig, role_of, source_of

UNKNOWN_ID = 99


def letters(rig: Rig, topic: str) -> list[int]:
    """The offsets of a topic's buried records."""
    told = [dict(r.headers or []) for r in rig.log.all(rig.topics.dead_letters)]
    return [int(of["dlq_offset"]) for of in told if of.get("dlq_topic") == topic.encode()]


def skip(rig: Rig, topic: str, group: str) -> None:
    decided = SkipOrder(group, topic, 0, 0, 0, "written by mistake", "ann")
    rig.pen.send(rig.topics.dead_letters, None, None, partition=0, headers=decided.headers())


@pytest.mark.parametrize("instead", [Event, PolicyVersion, None], ids=str)
def test_a_pause_under_a_reassigned_schema_id_is_not_lost(rig: Rig, instead: type | None) -> None:
    # Given a pause, and a registry that reassigns its id, before a worker that knows neither
    send_control(rig.pen, rig.codec, rig.topics, Control("pause"))
    texts = rig.registry._texts
    at = texts.index(schema_text(Control))
    right, texts[at] = texts[at], schema_text(instead) if instead else '"string"'
    rig.codec = Codec(rig.registry, clock=rig.clock)
    ask(rig, "r")

    # When it starts, then it waits, and logs the reason
    with capture_logs() as logs:
        loop = rig.agents("a1")
        for _ in range(3):
            rig.settle(loop)
            rig.clock.pass_by(2)
    said = [line for line in logs if line["event"] == "journal_held"]
    assert [(line["topic"], line["offset"]) for line in said] == [(rig.topics.control, 0)]
    assert "dlq skip t.agents t.control 0@0" in said[0]["remedy"]
    assert letters(rig, rig.topics.control) == []
    assert rig.events(RolloutStarted) == []
    source_of(loop).kill()

    # And once the registry is as it was, the pause is obeyed
    texts[at] = right
    rig.codec = Codec(rig.registry, clock=rig.clock)
    again = rig.agents("a2")
    rig.settle(again)
    assert role_of(again).control.known
    assert rig.events(RolloutStarted) == []
    send_control(rig.pen, rig.codec, rig.topics, Control("resume"))
    rig.clock.pass_by(2)
    rig.settle(again)
    assert len(rig.events(RolloutStarted)) == 1


@pytest.mark.parametrize("schema_id", [UNKNOWN_ID, None], ids=["unknown", "another-record"])
def test_a_stray_record_holds_control_until_it_is_skipped(rig: Rig, schema_id: int | None) -> None:
    number = schema_id or rig.registry.writer_id(rig.topics.events, schema_text(Event))
    rig.log.append(rig.topics.control, b"k", PREFIX.pack(0, number) + b"x")
    ask(rig, "r")
    loop = rig.agents()
    rig.settle(loop)
    assert rig.events(RolloutStarted) == []

    skip(rig, rig.topics.control, loop.dead_letters.group)
    rig.clock.pass_by(2)
    rig.settle(loop)

    assert len(rig.events(RolloutStarted)) == 1
    assert letters(rig, rig.topics.control) == [0]


def test_stray_records_delay_a_worker_by_its_patience_at_most(rig: Rig) -> None:
    for offset in range(5):
        rig.log.append(rig.topics.control, b"k%d" % offset, PREFIX.pack(0, UNKNOWN_ID) + b"x")
    ask(rig, "r")
    loop = rig.agents()
    rig.settle(loop)
    assert rig.events(RolloutStarted) == []

    rig.clock.pass_by(PATIENCE_S)
    rig.settle(loop)

    assert len(rig.events(RolloutStarted)) == 1
    assert letters(rig, rig.topics.control) == [0, 1, 2, 3, 4]


def test_bytes_without_any_schema_hold_no_worker(rig: Rig) -> None:
    rig.log.append(rig.topics.control, b"k", b"no magic")
    ask(rig, "r")

    rig.settle(rig.agents())

    assert len(rig.events(RolloutStarted)) == 1


def test_an_announcement_with_a_wrong_schema_is_held_and_not_buried(rig: Rig) -> None:
    number = rig.registry.writer_id(rig.topics.events, schema_text(Event))
    rig.log.append(rig.topics.versions, b"p", PREFIX.pack(0, number) + b"x")
    loop = rig.models(ScriptedEngine("p", lambda call: "yes"))
    rig.settle(loop)
    assert letters(rig, rig.topics.versions) == []
    assert not role_of(loop).versions.current

    skip(rig, rig.topics.versions, loop.dead_letters.group)
    rig.clock.pass_by(2)
    rig.settle(loop)
    assert role_of(loop).versions.current
