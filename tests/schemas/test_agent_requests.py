"""Asks and replies are encoded as differences, decoded unchanged, and have one digest."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.agent_requests import (
    AgentAction,
    AgentRequest,
    Choice,
    ErrorReply,
    ModelReply,
    RequestFingerprint,
    StepReply,
    choose_bases,
    differences_text,
    requests_of,
    requests_text,
    shared_length,
)
from rollcall.schemas.errors import WireError
from rollcall.schemas.known_requests import KnownFingerprints, KnownRequests
from rollcall.schemas.messages import Message
from tests.support.avro_messages import FEW

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
MESSAGES = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), WORDS, WORDS, WORDS, WORDS
)
COUNTS = st.integers(0, 2**31 - 1)
FLOATS = st.none() | st.floats(0, 2, allow_nan=False)
MODEL_REQUESTS = st.builds(
    AgentRequest, kind=st.just("model"), messages=st.lists(MESSAGES, max_size=4).map(tuple),
    policy=WORDS, tools=st.sampled_from(["", '[{"type":"function"}]', "[]"]),
    tool_choice=st.sampled_from(["auto", "none", "required", "function:bash"]),
    stop=st.lists(WORDS, max_size=2).map(tuple), max_tokens=st.none() | COUNTS,
    n=st.integers(1, 3), logprobs=st.booleans(), token_ids=st.booleans(), temperature=FLOATS,
    top_p=FLOATS, seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip
OTHER_REQUESTS = st.builds(AgentRequest, kind=st.sampled_from(["step", "finish"]), text=WORDS)
REQUESTS = MODEL_REQUESTS | OTHER_REQUESTS
NAMES = REQUESTS.map(lambda request: request.d)
IDS = st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
CHOICES = st.builds(
    Choice, WORDS, st.sampled_from(["stop", "length"]), WORDS, COUNTS, IDS,
    st.none() | st.lists(st.floats(-9, 0), max_size=3).map(tuple),
)  # fmt: skip
REPLIES = (
    st.builds(
        ModelReply, NAMES, st.lists(CHOICES, min_size=1, max_size=2).map(tuple), WORDS, COUNTS,
        COUNTS, IDS,
    )
    | st.builds(StepReply, NAMES, WORDS, st.floats(-1, 1), st.booleans(), st.booleans(), WORDS)
    | st.builds(ErrorReply, NAMES, st.integers(400, 599), WORDS, WORDS)
)  # fmt: skip
REQUEST = AgentRequest("model", (Message("system", "Be brief."), Message("user", "Hello")))


def named(requests: list[AgentRequest]) -> dict[str, AgentRequest]:
    return {request.d: request for request in requests}


def told(rest: str) -> str:
    return f'{{"asks": [{{"d": "{REQUEST.d}", {rest}}}]}}'


@st.composite
def conversations(draw: st.DrawFn) -> list[AgentRequest]:
    """Asks of which many continue, or return to, the messages of others."""
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=3))
    for _ in range(draw(st.integers(0, 4))):
        of = draw(st.sampled_from(requests))
        kept = of.messages[: draw(st.integers(0, len(of.messages)))]
        requests.append(
            replace(of, d="", messages=(*kept, *draw(st.lists(MESSAGES, max_size=2))))
            if of.kind == "model"
            else of
        )
    return requests


@given(conversations(), st.integers(0, 3))
@FEW
def test_requests_encoded_as_differences_are_decoded_unchanged(
    requests: list[AgentRequest], before: int
) -> None:
    known = requests[:before]

    assert requests_of(requests_text(requests, known), named(known)) == tuple(requests)


@given(conversations())
@FEW
def test_encoding_the_same_requests_gives_the_same_bytes(requests: list[AgentRequest]) -> None:
    assert requests_text(requests, []) == requests_text(
        requests_of(requests_text(requests, []), {}), []
    )


@given(MODEL_REQUESTS, FLOATS, FLOATS, st.none() | st.integers(0, 9))
@FEW
def test_sampling_options_do_not_change_the_digest_of_a_request(
    request: AgentRequest, temperature: float | None, top_p: float | None, seed: int | None
) -> None:
    other = replace(request, d="", temperature=temperature, top_p=top_p, seed=seed)

    assert other.d == request.d


@given(REQUESTS, REQUESTS)
@FEW
def test_requests_that_need_different_replies_have_different_digests(
    one: AgentRequest, other: AgentRequest
) -> None:
    unnamed: dict[str, Any] = {"temperature": None, "top_p": None, "seed": None, "d": "-"}

    assert (one.d == other.d) == (replace(one, **unnamed) == replace(other, **unnamed))


@pytest.mark.parametrize(
    "field",
    [
        {"kind": "finish"}, {"messages": ()}, {"text": "x"}, {"policy": "x"}, {"tools": "[]"},
        {"tool_choice": "none"}, {"stop": ("x",)}, {"max_tokens": 0}, {"n": 2}, {"logprobs": True},
        {"token_ids": True},
    ],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_every_field_that_affects_the_reply_changes_the_digest(field: dict[str, Any]) -> None:
    assert replace(REQUEST, d="", **field).d != REQUEST.d


def test_the_digest_of_a_request_matches_existing_journals() -> None:
    assert REQUEST.d == "5bad8801d67489a13f564ba4a7d4be51"


def test_a_conversation_of_100_turns_is_encoded_in_linear_size() -> None:
    tools = orjson.dumps([{"type": "function", "function": {"name": "x" * 5000}}]).decode()
    messages: tuple[Message, ...] = ()
    requests: list[AgentRequest] = []
    sizes = []
    for turn in range(100):
        messages += (Message("assistant", f"say {turn}"), Message("user", "y" * 1000))
        request = AgentRequest("model", messages, tools=tools)
        sizes.append(len(requests_text([request], requests)))
        requests.append(request)

    assert sizes[0] < 6500
    assert max(sizes[1:]) < 1300


def test_a_request_is_encoded_against_the_closest_earlier_one() -> None:
    main = AgentRequest(
        "model", (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    )
    other = AgentRequest("model", (Message("user", "a"), Message("user", "z")))
    longer = replace(main, d="", messages=(*main.messages, Message("assistant", "d")))

    value = longer.value(
        *RequestFingerprint.of(longer).closest(
            [RequestFingerprint.of(main), RequestFingerprint.of(other)]
        )
    )

    assert (value["like"], value["same"], len(value["new"])) == (main.d, 3, 1)


@given(st.lists(REPLIES, max_size=3), st.lists(NAMES, max_size=2))
@FEW
def test_an_action_is_read_back_unchanged(replies: list[Any], names: list[str]) -> None:
    action = AgentAction(tuple(replies), tuple(names))

    assert AgentAction.of(action.text()) == action


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "the whole"),
        ("[]", "the whole"),
        ("{}", "asks"),
        ('{"asks": 1}', "asks"),
        ('{"asks": [{"d": "x", "kind": "model"}]}', "asks.0.d"),
        (told('"kind": "dance"'), "asks.0.kind"),
        (told('"kind": "model", "max_tokens": "1"'), "max_tokens"),
        (told('"kind": "model", "colour": 1'), "colour"),
        (told('"kind": "model", "same": 1'), "has 0 messages"),
        (told('"kind": "model", "like": "00000000000000000000000000000000"'), "not known"),
        (told('"kind": "model", "tools": null'), "has 0 messages"),
    ],
)
def test_an_invalid_observation_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(WireError, match=place):
        requests_of(text, {})


def test_more_shared_messages_than_exist_are_refused() -> None:
    told = orjson.dumps({"asks": [{"d": "0" * 32, "kind": "model", "like": REQUEST.d, "same": 3}]})

    with pytest.raises(WireError, match="has 2 messages"):
        requests_of(told.decode(), named([REQUEST]))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"replies": [{}]}', '{"replies": [], "open": ["x"]}', '{"replies": [], "a": 1}',
        f'{{"replies": [{{"d": "{REQUEST.d}", "status": 200, "code": "", "error": ""}}]}}',
    ],
)  # fmt: skip
def test_an_invalid_action_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="action does not fit"):
        AgentAction.of(text)


def test_messages_of_a_growing_conversation_are_held_once() -> None:
    known = KnownRequests()
    for turns in range(1, 9):
        messages = [Message("user", f"turn {n} " + "x" * 100) for n in range(turns)]
        request = AgentRequest("model", tuple(messages), tools=f"[{turns - turns}]")
        known.add(request)
        known.apply(AgentAction((ErrorReply(request.d, 404, "over", "over"),)))

    requests = known.at_both_ends()

    assert [len(request.messages) for request in requests] == list(range(1, 9))
    assert len({id(message) for request in requests for message in request.messages}) == 8
    assert len({id(request.tools) for request in requests}) == 1


@given(st.lists(MODEL_REQUESTS, min_size=1, max_size=4), st.data())
def test_cached_prints_do_not_change_the_encoding_of_a_request(
    requests: list[AgentRequest], data: st.DataObject
) -> None:
    *heard, new = [*requests, *data.draw(st.lists(st.sampled_from(requests), max_size=2))]
    known = KnownFingerprints()
    for request in [*heard, new]:
        known.add(request)

    told = differences_text(choose_bases([new], heard, known.by_name()))

    assert told == differences_text(choose_bases([new], heard))


@given(st.lists(MESSAGES, max_size=4), st.integers(0, 4), st.lists(MESSAGES, max_size=2))
def test_common_messages_are_counted_up_to_the_first_difference(
    some: list[Message], same: int, rest: list[Message]
) -> None:
    others = [*(replace(message) for message in some[:same]), *rest]

    shared = shared_length(some, tuple(others))

    assert some[:shared] == others[:shared]
    assert shared in (len(some), len(others)) or some[shared] != others[shared]


def test_a_request_shares_the_messages_of_its_predecessor() -> None:
    question, answer = Message("user", "how much?"), Message("assistant", "all of it")
    first = AgentRequest("model", (question,))
    second = AgentRequest("model", (question, answer))
    copied = AgentRequest("model", (replace(question), answer))

    assert second.sharing([first]) is second
    assert copied.sharing([first]).messages[0] is question
