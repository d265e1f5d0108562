"""Chat completions, as OpenAI's client sends and reads them."""

from dataclasses import replace
from typing import Any

import openai
import orjson
import pytest

from rollcall.inference.dialects.chat_completions import CHAT
from rollcall.schemas.agent_requests import Choice
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.dialect_server import ID, DialectServer, reply_to, says

CALLS = (ToolCall("call_1", "bash", '{"command":"ls"}'), ToolCall("call_2", "done", "{}"))
CALLING = Choice("Let me look.", "stop", tool_calls_text(CALLS), 9)
SAID = Choice("Hello é.", "stop", "", 2)
USER: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
]


def test_the_client_reads_a_text_answer() -> None:
    server = DialectServer(says(SAID))

    got = server.openai().chat.completions.create(model="any", messages=USER)

    assert got.choices[0].message.content == "Hello é."
    assert got.choices[0].finish_reason == "stop"
    assert (got.id, got.created, got.model) == (ID, 1_700_000_000, "policy")
    assert got.usage is not None
    assert got.usage.total_tokens == 9
    assert server.request.messages == (Message("user", "Hello"),)


@pytest.mark.parametrize("choice", [CALLING, Choice("", "stop", tool_calls_text(CALLS))])
def test_the_client_sends_back_the_policys_answer_unchanged(choice: Choice) -> None:
    server = DialectServer(says(choice))
    create = server.openai().chat.completions.create
    got = create(model="policy", messages=USER, tools=TOOLS).choices[0]
    results: Any = [
        {"role": "tool", "tool_call_id": name, "content": "a.txt"} for name in ("call_1", "call_2")
    ]

    said = got.message.model_dump(exclude_unset=True)
    create(model="policy", messages=[*USER, said, *results], tools=TOOLS)

    assert got.finish_reason == "tool_calls"
    assert server.request.messages[1:] == (
        Message("assistant", choice.text, choice.tool_calls),
        Message("tool", "a.txt", "", "call_1"),
        Message("tool", "a.txt", "", "call_2"),
    )
    assert orjson.loads(server.request.tools) == TOOLS


@pytest.mark.parametrize("choice", [SAID, CALLING, Choice("")])
def test_a_stream_equals_the_whole_answer(choice: Choice) -> None:
    server = DialectServer(says(choice, SAID))
    with server.openai().chat.completions.stream(
        model="policy", messages=USER, n=2, stream_options={"include_usage": True}
    ) as stream:
        got = stream.get_final_completion()

    whole = server.openai().chat.completions.create(model="policy", messages=USER, n=2)

    for streamed, one in zip(got.choices, whole.choices, strict=True):
        assert (streamed.message.content or "") == (one.message.content or "")
        assert streamed.finish_reason == one.finish_reason
        calls = [
            [(call.id, call.function.name, call.function.arguments) for call in tools or ()]
            for tools in (streamed.message.tool_calls, one.message.tool_calls)
        ]
        assert calls[0] == calls[1]
    assert got.usage == whole.usage


def test_a_stream_reports_its_usage_on_request_and_ends_with_done() -> None:
    server = DialectServer(says(SAID))
    create = server.openai().chat.completions.create
    usages = [
        [
            chunk.usage
            for chunk in create(model="p", messages=USER, stream=True, stream_options=options)
        ]
        for options in ({"include_usage": True}, {"include_usage": False})
    ]

    assert [usage is not None for usage in usages[0]] == [False] * 3 + [True]
    assert usages[1] == [None] * 3


def test_a_truncated_answer_has_finish_reason_length() -> None:
    server = DialectServer(says(Choice("Hel", "length", CALLING.tool_calls)))
    create = server.openai().chat.completions.create

    assert create(model="p", messages=USER).choices[0].finish_reason == "length"
    chunks = list(create(model="p", messages=USER, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"


def test_logprobs_and_token_ids_are_returned_on_request() -> None:
    choice = Choice("a b", "stop", "", 2, (17, 4), (-0.5, -1.25))
    server = DialectServer(
        lambda request: replace(reply_to(request, choice), prompt_token_ids=(5,))
    )
    create = server.openai().chat.completions.create
    extra = {"return_token_ids": True}

    got = create(model="p", messages=USER, logprobs=True, top_logprobs=1, extra_body=extra)
    chunks = list(create(model="p", messages=USER, logprobs=True, stream=True, extra_body=extra))

    for logprobs in (got.choices[0].logprobs, chunks[-1].choices[0].logprobs):
        assert logprobs is not None
        told = [(one.token, one.logprob) for one in logprobs.content or ()]
        assert told == [("token_id:17", -0.5), ("token_id:4", -1.25)]
    content = got.choices[0].logprobs and got.choices[0].logprobs.content
    assert [one.top_logprobs[0].logprob for one in content or ()] == [-0.5, -1.25]
    assert got.choices[0].model_dump()["token_ids"] == [17, 4]
    assert [one.model_dump()["prompt_token_ids"] for one in (got, chunks[0])] == [[5], [5]]
    assert (server.request.logprobs, server.request.token_ids) == (True, True)


def test_too_many_top_logprobs_are_refused_in_the_vendors_words() -> None:
    """A reader of class probabilities would take missing alternatives for impossible ones."""
    server = DialectServer(says(SAID))
    chat, responses = server.openai().chat.completions, server.openai().responses
    include: Any = ["message.output_text.logprobs"]

    for request in (
        lambda: chat.create(model="p", messages=USER, logprobs=True, top_logprobs=5),
        lambda: responses.create(model="p", input="x", include=include, top_logprobs=5),
    ):
        with pytest.raises(openai.BadRequestError, match="'top_logprobs' does not sup") as refused:
            request()
        assert (refused.value.code, refused.value.param) == ("unsupported_value", "top_logprobs")

    assert server.requests == []
    chat.create(model="p", messages=USER, top_logprobs=5)
    assert not server.request.logprobs


def read(**fields: Any) -> Any:
    return CHAT.read(orjson.dumps({"messages": USER} | fields), ["policy"], {}).request


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "", "y"]}, {"stop": ("x", "y")}),
        ({"stop": None}, {"stop": ()}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6, "max_tokens": None}, {"max_tokens": 6}),
        ({}, {"max_tokens": None, "tool_choice": "auto", "n": 1, "tools": ""}),
        ({"n": 3}, {"n": 3}),
        ({"temperature": 0, "top_p": 0.5, "seed": 7}, {"temperature": 0, "top_p": 0.5, "seed": 7}),
        ({"tool_choice": "none", "tools": TOOLS}, {"tool_choice": "none"}),
        ({"tool_choice": "required", "tools": TOOLS}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "bash"}}, "tools": TOOLS},
            {"tool_choice": "function:bash"},
        ),
        ({"reasoning_effort": "high", "provider_specific_fields": {"a": [1]}, "x": None}, {}),
    ],
)
def test_request_fields_are_copied_to_the_ask(
    fields: dict[str, Any], found: dict[str, Any]
) -> None:
    request = read(**fields)

    assert {name: getattr(request, name) for name in found} == found


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"role": "developer", "content": "x"}, Message("system", "x")),
        ({"role": "user", "content": None}, Message("user")),
        ({"role": "user", "content": [], "name": "Ann"}, Message("user", name="Ann")),
        (
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
            Message("user", "ab"),
        ),
        ({"role": "assistant", "refusal": None, "name": "x"}, Message("assistant")),
        ({"role": "assistant", "content": "x", "tool_calls": []}, Message("assistant", "x")),
    ],
)
def test_messages_are_normalised(message: dict[str, Any], found: Message) -> None:
    assert read(messages=[message]).messages == (found,)


def test_sampling_options_and_unknown_keys_do_not_change_the_digest() -> None:
    same = {
        "seed": 1,
        "user": "u",
        "metadata": {"a": "b"},
        "stream": True,
        "temperature": 0.3,
        "top_p": 0.2,
        "prompt_cache_key": "k",
        "stream_options": {"include_usage": True},
        "unknown": [1],
        "store": True,
    }

    assert read(**same).d == read().d
    assert read(n=2).d != read().d


def test_any_model_name_selects_an_only_policy_but_not_among_several() -> None:
    body = orjson.dumps({"messages": USER, "model": "gpt"})
    two = orjson.dumps({"messages": USER, "model": "judge"})

    assert CHAT.read(body, ["policy"], {}).request.policy == "policy"
    assert CHAT.read(two, ["policy", "judge"], {}).request.policy == "judge"
    with pytest.raises(openai.NotFoundError, match="'gpt' is no policy of this rollout"):
        DialectServer(says(SAID), ["policy", "judge"]).openai().chat.completions.create(
            model="gpt", messages=USER
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": 5}, "messages must be a list, found 5"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type must be 'text', found 'image_url'",
        ),
        ({"messages": [{"role": "function"}]}, "messages[0].role must be one of 'system'"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id is missing"),
        ({"max_tokens": "5"}, "max_tokens must be an integer, found '5'"),
        ({"max_tokens": 0}, "max_tokens must be greater than or equal to 1, found 0"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"n": True}, "n must be"),
        ({"stop": [1]}, "stop[0] must be a text, found 1"),
        ({"tool_choice": "sometimes"}, "tool_choice must be 'auto', 'none' or 'required'"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice names 'x', which is none of the tools: none",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type must be 'function'"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name is missing"),
    ],
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    server = DialectServer(says(SAID))

    with pytest.raises(openai.BadRequestError) as refused:
        server.openai().chat.completions.create(model="p", messages=USER, extra_body=fields)

    assert words in refused.value.message
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == words.split()[0]
    assert server.requests == []
