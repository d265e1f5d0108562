"""A failure code is written, hashed and shown as the plain text that it equals."""

import json
import pickle
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from rollcall.consumers.agents.effects import WishFailed
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_of
from rollcall.schemas.agent_requests import AgentAction, ErrorReply
from rollcall.schemas.errors import FailureCode, ProgramFailed, WorkFailed
from rollcall.schemas.message_code import PLAIN, message_code
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    RolloutFinished,
    RolloutRefused,
    Trajectory,
)
from tests.support.avro_messages import codec_for, example

FORMS = tuple(dict.fromkeys((PLAIN, message_code())))
FOLD = FoldContext(program_of, Random)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.form)
def test_records_with_a_member_and_with_its_text_have_the_same_bytes(form: Any) -> None:
    events, trajectories = codec_for(Event, form), codec_for(Trajectory, form)
    for code in FailureCode:
        for body in (CallFailed, RolloutFinished, RolloutRefused):
            of_text = example(Event, body=example(body, code=code.value))
            of_member = replace(of_text, body=replace(of_text.body, code=code))
            value = events.encode("a.topic", of_member)
            assert value == events.encode("a.topic", of_text)
            assert type(events.decode(value, Event).body.code) is str
        whole = example(Trajectory, code=code.value)
        value = trajectories.encode("a.topic", replace(whole, code=code))
        assert value == trajectories.encode("a.topic", whole)


@pytest.mark.parametrize("code", [FailureCode.BUSY, FailureCode.SESSION_LOST])
def test_a_member_is_shown_and_serialised_as_its_text(code: FailureCode) -> None:
    text = code.value

    assert [str(code), f"{code}", repr(code), f"{code!r}"] == [text, text, repr(text), repr(text)]
    assert repr(CallFailed(code, "m", False)) == repr(CallFailed(text, "m", False))
    assert json.dumps({code: code}) == json.dumps({text: text})
    assert orjson.dumps([code]) == orjson.dumps([text])
    assert (pickle.loads(pickle.dumps(code)), hash(code)) == (text, hash(text))
    assert {code: 1}[text] == {text: 1}[code]
    actions = [AgentAction((ErrorReply("0" * 32, 400, each, "m"),)) for each in (code, text)]
    assert actions[0].text() == actions[1].text()


@pytest.mark.parametrize("code", [FailureCode.TOKEN_LIMIT, "a_code_of_a_user"])
def test_errors_carry_a_member_like_a_text(code: str) -> None:
    assert WorkFailed(code, "m", retriable=True).code == code
    assert ProgramFailed(code, "m").code == code
    failed = FOLD.failure("a program", WishFailed(code, "m"))
    assert (type(failed.code), failed.code) == (str, str(code))
