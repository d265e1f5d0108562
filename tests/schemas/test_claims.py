"""Values too large for the log are kept in an object store; only the codec knows."""

import dataclasses
from typing import Any

import pytest

from rollcall.schemas.circuit_breaker import AGAIN_S
from rollcall.schemas.claims import HOLDERS, LIGHT, claim_in, replace_by_claim
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import BadBytes, ObjectLost, Unavailable, WireError
from rollcall.schemas.messages import (
    Claim,
    Control,
    EnvironmentStepped,
    Event,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
    TokenScores,
    Trajectory,
)
from rollcall.schemas.topics import Topics
from tests.support.avro_messages import Shelf, example, one_of_each_kind

TOPIC = "a.topic"
HEAVY = {
    name: message
    for name, message in one_of_each_kind().items()
    if replace_by_claim(message, Claim("", "", 0)) is not None
}
"""Of each record that can bear a claim, somewhere in it, a whole one."""
EACH_HEAVY = pytest.mark.parametrize("name", HEAVY)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(above_bytes=50)


@pytest.fixture
def codec(shelf: Shelf) -> Codec:
    return Codec(LocalRegistry(), objects=shelf)


def light_of(codec: Codec, value: bytes, record: type) -> Any:
    """The value on the log, read without the store."""
    return codec._decoded(value, record)


def test_every_record_with_a_claim_is_covered() -> None:
    assert set(HEAVY) == {
        "RolloutRequest",
        "ModelCall",
        "EnvironmentStep",
        "Trajectory",
        "ScoredTrajectory",
        "Event-RolloutStarted",
        "Event-RolloutRefused",
        "Event-ModelAnswered",
        "Event-EnvironmentStepped",
    }
    for record in LIGHT:
        assert "claim" in {field.name for field in dataclasses.fields(record)}
    for record, field in HOLDERS.items():
        assert field in {each.name for each in dataclasses.fields(record)}


@EACH_HEAVY
def test_a_heavy_record_is_read_back_and_its_object_is_stored_first(
    codec: Codec, shelf: Shelf, name: str
) -> None:
    message = HEAVY[name]

    value = codec.encode(TOPIC, message)

    whole = Codec(codec.registry).encode(TOPIC, message)
    assert list(shelf.held.values()) == [whole]
    light = light_of(codec, value, type(message))
    assert claim_in(light) == Claim(*[next(iter(shelf.held))] * 2, len(whole))
    assert codec.decode(value, type(message)) == message


@EACH_HEAVY
def test_long_fields_are_left_out_of_the_light_record(codec: Codec, name: str) -> None:
    long = "long " * 20_000
    message = HEAVY[name]
    bearer: Any = message
    fields = []
    while (field := HOLDERS.get(type(bearer))) is not None:
        fields.append(field)
        bearer = getattr(bearer, field)
    grown = {
        field.name: long
        for field in dataclasses.fields(bearer)
        if type(getattr(bearer, field.name)) is str and field.name in LONG
    }
    made = dataclasses.replace(bearer, **grown)
    for depth in range(len(fields), 0, -1):
        holder = message
        for field in fields[: depth - 1]:
            holder = getattr(holder, field)
        made = dataclasses.replace(holder, **{fields[depth - 1]: made})

    value = codec.encode(TOPIC, made)

    assert len(value) < 3000
    assert codec.decode(value, type(message)) == made


def test_token_scores_are_stored_with_their_trajectory(codec: Codec) -> None:
    tokens = TokenScores("teacher", 0, bytes(400_000))
    scored = example(ScoredTrajectory, token_scores=(tokens,))

    value = codec.encode(TOPIC, scored)

    assert len(value) < 3000
    assert codec.decode(value, ScoredTrajectory) == scored


LONG = {"text", "info", "tool_calls", "tools", "action", "agent_config", "result"}


@EACH_HEAVY
def test_identifying_fields_stay_in_the_log(codec: Codec, name: str) -> None:
    message = HEAVY[name]

    light = light_of(codec, codec.encode(TOPIC, message), type(message))

    for field in ("rollout_id", "attempt", "position", "command_id", "body_digest", "scoring_id"):
        if hasattr(message, field):
            assert getattr(light, field) == getattr(message, field)


@pytest.mark.parametrize("name", sorted(one_of_each_kind().keys() - HEAVY.keys()))
def test_records_without_a_claim_stay_in_the_log(codec: Codec, shelf: Shelf, name: str) -> None:
    message = one_of_each_kind()[name]

    value = codec.encode(TOPIC, message)

    assert value == Codec(codec.registry).encode(TOPIC, message)
    assert not shelf.held


def test_values_up_to_the_limit_stay_in_the_log(codec: Codec, shelf: Shelf) -> None:
    message = HEAVY["ModelCall"]
    shelf.above_bytes = len(Codec(codec.registry).encode(TOPIC, message))

    codec.encode(TOPIC, message)
    assert not shelf.held

    shelf.above_bytes -= 1
    codec.encode(TOPIC, message)
    assert len(shelf.held) == 1


def test_a_missing_or_altered_object_is_refused_by_name(codec: Codec, shelf: Shelf) -> None:
    value = codec.encode(TOPIC, HEAVY["ModelCall"])
    (name,) = shelf.held

    shelf.held[name] = shelf.held[name][:-1] + b"?"
    with pytest.raises(ObjectLost, match=f"object {name} holds .* were claimed"):
        codec.decode(value, ModelCall)

    del shelf.held[name]
    with pytest.raises(ObjectLost, match=name):
        codec.decode(value, ModelCall)


def test_an_unavailable_store_is_retried_at_intervals() -> None:
    shelf, time = Shelf(above_bytes=50), Time()
    codec = Codec(LocalRegistry(), objects=shelf, clock=time)
    value = codec.encode(TOPIC, HEAVY["ModelCall"])

    shelf.away = True
    with pytest.raises(Unavailable, match="away"):
        codec.decode(value, ModelCall)
    with pytest.raises(Unavailable, match="away"):
        codec.encode(TOPIC, HEAVY["ModelCall"])
    shelf.away = False
    with pytest.raises(Unavailable, match="away"):
        codec.decode(value, ModelCall)

    time.now += AGAIN_S
    assert codec.decode(value, ModelCall) == HEAVY["ModelCall"]
    assert codec.encode(TOPIC, Control("pause"))


def test_a_full_store_can_still_be_read(codec: Codec, shelf: Shelf) -> None:
    value = codec.encode(TOPIC, HEAVY["ModelCall"])

    shelf.full = True
    with pytest.raises(Unavailable, match="full"):
        codec.encode(TOPIC, HEAVY["ModelCall"])

    assert codec.decode(value, ModelCall) == HEAVY["ModelCall"]


def test_without_a_store_values_stay_whole_and_claims_are_lost(codec: Codec) -> None:
    value = codec.encode(TOPIC, HEAVY["ModelCall"])
    bare = Codec(codec.registry)

    assert bare.decode(bare.encode(TOPIC, HEAVY["ModelCall"]), ModelCall) == HEAVY["ModelCall"]
    with pytest.raises(ObjectLost, match="ROLLCALL_OBJECTS__URL") as lost:
        bare.decode(value, ModelCall)
    assert isinstance(lost.value.light, ModelCall)
    assert lost.value.light.command_id == HEAVY["ModelCall"].command_id


def test_an_object_with_a_claim_of_its_own_is_refused(codec: Codec, shelf: Shelf) -> None:
    inner = codec.encode(TOPIC, HEAVY["ModelCall"])
    claim = shelf.put(inner)
    bare = Codec(codec.registry)

    with pytest.raises(BadBytes, match="claims another object"):
        codec.decode(bare.encode(TOPIC, replace_by_claim(HEAVY["ModelCall"], claim)), ModelCall)


def test_an_object_of_another_record_is_refused(codec: Codec, shelf: Shelf) -> None:
    claim = shelf.put(codec.encode("b.topic", Control("pause")))
    bare = Codec(codec.registry)

    with pytest.raises(WireError):
        codec.decode(bare.encode(TOPIC, replace_by_claim(HEAVY["ModelCall"], claim)), ModelCall)


def test_a_claim_beside_a_complete_value_is_ignored(codec: Codec) -> None:
    call = dataclasses.replace(HEAVY["ModelCall"], claim=Claim("elsewhere", "0" * 64, 1))

    value = Codec(codec.registry).encode(TOPIC, call)

    assert codec.decode(value, ModelCall) == call


@pytest.mark.parametrize("above_bytes", [50, 1000, 10**9])
def test_a_score_around_a_heavy_trajectory_contains_it_complete(above_bytes: int) -> None:
    shelf = Shelf(above_bytes)
    codec, topics = Codec(LocalRegistry(), objects=shelf), Topics()
    read = codec.encode(topics.trajectories, example(Trajectory))
    scored = example(ScoredTrajectory, trajectory=codec.decode(read, Trajectory))

    value = codec.encode_around(topics.scored, scored, "trajectory", read)

    assert value == codec.encode(topics.scored, scored)
    assert codec.decode(value, ScoredTrajectory) == scored


def test_a_comparing_codec_reads_but_never_writes_objects(codec: Codec, shelf: Shelf) -> None:
    value = codec.encode(TOPIC, HEAVY["ModelCall"])
    shelf.above_bytes = 0

    comparing = codec.writing_whole()

    message = comparing.decode(value, ModelCall)
    assert comparing.encode(TOPIC, message) == next(iter(shelf.held.values()))
    assert len(shelf.held) == 1


def test_fields_kept_in_a_light_record_can_be_picked(codec: Codec) -> None:
    scored = HEAVY["ScoredTrajectory"]
    value = codec.encode(TOPIC, scored)

    picked = codec.pick(value, ScoredTrajectory, "scoring_id", "trajectory.rollout_id", "total")

    assert picked == (scored.scoring_id, scored.trajectory.rollout_id, scored.total)


def test_a_request_inside_an_event_is_lightened_too(codec: Codec) -> None:
    started = HEAVY["Event-RolloutStarted"]

    light = light_of(codec, codec.encode(TOPIC, started), Event)

    assert light.body.request.task.prompt == ""
    assert light.body.request.rollout_id == started.body.request.rollout_id
    assert isinstance(started.body.request, RolloutRequest)
    assert not isinstance(light.body, EnvironmentStepped)
