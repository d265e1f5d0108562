"""A request that another process has parsed is read back unchanged."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.environments.gateway.gateway import DIALECTS
from rollcall.inference.dialects.dialect import Declined
from rollcall.inference.dialects.request_serialisation import (
    ConversationMissing,
    LoadedConversations,
    conversations_of,
    request_of,
    serialise_conversations,
    serialise_request,
)
from rollcall.inference.dialects.routes import ROUTES
from rollcall.schemas.messages import Message
from tests.support.avro_messages import FEW
from tests.support.dialect_server import reply_to
from tests.support.fuzzed_bodies import BODIES, EARLIER, SAID, changed, written

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MESSAGES = st.builds(Message, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)


@pytest.mark.parametrize("path", ROUTES)
def test_a_request_is_read_back_unchanged_by_another_process(path: str) -> None:
    rng = random.Random(path)
    dialect, count = ROUTES[path], 0
    for _ in range(500):
        value = changed(BODIES[path], rng) if rng.random() < 0.9 else BODIES[path]
        try:
            request = dialect.read(written(value, rng), ["policy"], EARLIER)
        except Declined:
            continue
        back = request_of(serialise_request(request))
        reply = reply_to(request.request, *[SAID] * request.request.n)

        assert (back.request, back.request.d, back.turns) == (
            request.request,
            request.request.d,
            request.turns,
        )
        assert dialect.body(back, reply) == dialect.body(request, reply)
        assert dialect.events(back, reply) == dialect.events(request, reply)
        assert dialect.kept(back, reply) == dialect.kept(request, reply)
        count += 1
    assert count > 50


@pytest.mark.parametrize("path", ["/v1/step", "/v1/finish"])
@given(text=TEXTS)
@FEW
def test_a_step_is_read_back_unchanged_by_another_process(path: str, text: str) -> None:
    body = written({"action": text, "result": text}, random.Random(0.5))
    request = DIALECTS[path].read(body, [], {})

    assert request_of(serialise_request(request)) == request


@given(st.dictionaries(TEXTS, st.lists(MESSAGES, max_size=3), max_size=3))
@FEW
def test_conversations_are_read_back_unchanged_by_another_process(
    said: dict[str, list[Message]],
) -> None:
    assert conversations_of(serialise_conversations(said)) == said


def test_an_unloaded_conversation_is_requested_and_a_missing_one_is_not() -> None:
    some = LoadedConversations({"a": [Message("user", "x")]}, ["b"])

    assert some["a"]
    assert "b" not in some
    with pytest.raises(ConversationMissing) as needed:
        some.get("c")
    assert needed.value.name == "c"
