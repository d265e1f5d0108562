"""A server behind HTTP as an engine: its answers, and every way in which it can fail."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.settings import ModelsSettings, OpenAISettings
from rollcall.compose.workers.engines import server_engine
from rollcall.inference.engine import Engine
from rollcall.inference.openai_client import _after_s
from rollcall.schemas.errors import Unfit
from rollcall.schemas.messages import CallFailed, Message, ModelAnswered, ModelCall
from rollcall.schemas.packed import logprobs_of
from rollcall.schemas.tool_calls import tool_calls_of
from tests.support.openai_mock import (
    LOGPROB,
    Body,
    MockServer,
    Reply,
    chat,
    completion,
    sampled,
    serving,
)
from tests.support.policies import after, body, call, failure, run, tokens, version_of

KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with serving(lambda path, body: chat()) as server:
        yield server


def asking(server: MockServer, directory: Path | None = None, **options: Any) -> Engine:
    """An engine on a server that has been asked nothing yet."""
    server.asked.clear()
    server.keys.clear()
    options = {"base_url": server.url, "model": "m", "retries": 2} | options
    options["api"] = "completions" if directory else "chat"
    models = ModelsSettings(openai=OpenAISettings(**options))
    return server_engine("policy", directory, models)


def saying(*replies: Any) -> Callable[[str, Body], Any]:
    """One reply after the other; the last one for ever."""
    left = list(replies)
    return lambda path, body: left.pop(0) if len(left) > 1 else left[0]


def soon(one: ModelCall, seconds: float = 30.0) -> ModelCall:
    """A call that may begin for a while yet."""
    return replace(one, not_after_ms=int((time.time() + seconds) * 1000))


# Requests and answers


def test_a_conversation_is_reconstructed_as_messages_from_its_ids(server: MockServer) -> None:
    server.speak = saying(chat("yes"), chat(None, "tool_calls", tool_calls=[CALL]), chat("done"))
    engine = asking(server, body={"reasoning_effort": "low"})
    first = call("r", said=[Message("system", "Be brief."), Message("user", "é?")], stop=("END",))
    answers = [body(engine, first)]
    second = call("r", 1, said="go on", prefix=after(first, answers[0]))
    answers.append(body(engine, replace(second, tools='[{"type":"function"}]')))
    # Another engine, which has seen none of this
    said = [Message("tool", "a.txt", tool_call_id="call_0")]
    third = call("r", 2, said=said, prefix=after(second, answers[1]))
    answers.append(body(asking(server), third))

    (path, asked), *_ = server.asked
    assert path == "chat/completions"
    sent = asked["messages"]
    assert [each["role"] for each in sent] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]
    assert [each["content"] for each in sent] == [
        "Be brief.",
        "é?",
        "yes",
        "go on",
        "",
        "a.txt",
    ]
    (told,) = tool_calls_of(answers[1].tool_calls)
    assert (told.name, told.arguments, told.id.startswith("call_")) == ("ls", '{"a":1}', True)
    assert sent[4]["tool_calls"][0]["id"] == told.id
    assert {answer.untrainable for answer in answers} == {"no_token_ids"}
    assert [answer.finish_reason for answer in answers] == ["stop"] * 3


CALL = {"id": "x", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}


def test_the_request_contains_the_options_of_the_call(server: MockServer) -> None:
    server.speak = saying(chat())
    engine = asking(server, body={"reasoning_effort": "low"})
    body(engine, call(stop=("END", ""), temperature=0.5, top_k=7, max_tokens=9))
    body(engine, call())

    (_, full), (_, plain) = server.asked
    assert (full["stop"], full["temperature"], full["top_k"]) == (["END"], 0.5, 7)
    assert (full["max_tokens"], full["reasoning_effort"]) == (9, "low")
    assert 0 <= full["seed"] < 1 << 31
    assert "stop" not in plain
    assert "top_k" not in plain


def test_counting_tokens_sends_no_request(server: MockServer) -> None:
    answered = body(asking(server), call(said="how long?", max_tokens=0))

    assert (answered.token_ids, answered.finish_reason) == (b"", "length")
    assert len(tokens(answered.added_ids)) == 1 + 3 + 1
    assert server.asked == []


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (chat("cut", "length"), "cut", "length"),
        (chat("odd", None), "odd", "other"),
        (chat("odd", {"a": 1}), "odd", "other"),
        (chat("odd", "content_filter"), "odd", "other"),
        (chat(None, refusal="I will not"), "I will not", "stop"),
        (chat(""), "", "stop"),
        (chat("before END after"), "before ", "stop"),
        (chat("lone \ud800"), "lone ?", "stop"),
        (chat("x", tool_calls=None, reasoning_content="hm"), "x", "stop"),
        (Reply(chat("plain"), headers={"Content-Type": "text/plain"}), "plain", "stop"),
        (chat("null error") | {"error": None, "usage": None}, "null error", "stop"),
    ],
)
def test_unusual_answers_are_accepted_as_they_are(
    server: MockServer, reply: Any, text: str, finish: str
) -> None:
    server.speak = saying(reply)

    answered = body(asking(server), call(stop=("END",), max_tokens=64))

    assert (answered.text, answered.finish_reason) == (text, finish)
    assert len(server.asked) == 1


# Tokens


def test_a_token_server_gets_and_returns_token_ids(server: MockServer, lake: Path) -> None:
    server.speak = lambda path, asked: sampled(asked, "D", [3])
    engine = asking(server, lake)
    first = call("r")
    answered = body(engine, first)
    again = body(engine, call("r", 1, said="s3", prefix=after(first, answered)))

    assert server.asked[0][0] == "completions"
    assert server.asked[0][1]["return_token_ids"] is True
    prompts = [asked["prompt"] for _, asked in server.asked]
    assert prompts[0] == tokens(answered.added_ids)
    assert prompts[1] == [*prompts[0], 3, *tokens(again.added_ids)]
    assert (tokens(answered.token_ids), answered.untrainable) == ([3], "")
    assert logprobs_of(answered.logprobs).tolist() == [LOGPROB]
    assert tokens(answered.versions) == [0]


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"token_ids": None}, "no_token_ids"),
        ({"prompt_token_ids": [7]}, "other_prompt"),
        ({"prompt_token_ids": None}, ""),
        ({}, ""),
    ],
)
def test_an_answer_without_matching_ids_is_usable_but_untrainable(
    server: MockServer, lake: Path, choice: Body, why: str
) -> None:
    server.speak = lambda path, asked: sampled(asked, "D", [3], **choice)

    answered = body(asking(server, lake), call())

    assert (answered.text, answered.untrainable) == ("D", why)
    assert tokens(answered.token_ids) == [3]
    assert len(answered.logprobs) == 4


def test_logprobs_of_another_distribution_are_untrainable(server: MockServer, lake: Path) -> None:
    server.speak = lambda path, asked: sampled(asked, "D", [3])
    engine = asking(server, lake)

    assert body(engine, call(temperature=0.7)).untrainable == "raw_logprobs"
    assert body(engine, call(top_p=0.9)).untrainable == "raw_logprobs"
    assert body(engine, call(temperature=1.0)).untrainable == ""


def test_text_of_a_server_without_ids_is_encoded_locally(server: MockServer, lake: Path) -> None:
    server.speak = saying(completion("D U"))

    answered = body(asking(server, lake), call())

    assert (tokens(answered.token_ids), answered.untrainable) == ([3, 5], "no_token_ids")


# Failures


@pytest.mark.parametrize(
    ("status", "said", "code", "words"),
    [
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, "unauthorised", "MY_KEY"),
        (403, {"error": "no"}, "unauthorised", "put a key"),
        (404, {"error": {"message": "no such model"}}, "unknown_model", "it has no model 'm'"),
        (404, b"<html>nginx</html>", "unknown_model", "<html>nginx</html>"),
        (400, {"error": {"code": "context_length_exceeded"}}, "too_long", "longer than"),
        (400, {"message": "This model's maximum context length is 9"}, "too_long", "longer than"),
        (422, {"detail": [{"loc": ["body"]}]}, "bad_request", "'loc'"),
        (429, {"error": {"code": "insufficient_quota"}}, "no_quota", "nothing left"),
        (301, b"", "moved", "as the base URL"),
        (200, {"error": {"code": 404, "message": "nope"}}, "unknown_model", "answered 404: 404"),
    ],
)
def test_a_permanent_error_is_reported_at_once_in_one_line(
    server: MockServer,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    said: Any,
    code: str,
    words: str,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.speak = saying(Reply(said, status))

    failed = failure(asking(server, api_key_env="MY_KEY"), soon(call()))

    assert (failed.code, failed.retriable, len(server.asked)) == (code, False, 1)
    assert words in failed.message
    assert "\n" not in failed.message
    assert server.url in failed.message
    assert KEY not in failed.message
    assert server.keys == [f"Bearer {KEY}"]


BROKEN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"<html>hello</html>",
    b"data: {}\n\n",
    {},
    {"choices": []},
    {"choices": [None]},
    {"choices": {}},
    {"choices": [{}]},
    {"choices": [{"message": "x"}]},
    chat(["x"]),
    chat(7),
    chat("x", tool_calls=7),
    chat("x", tool_calls=[{}]),
    chat("x", tool_calls=[{"function": {"name": 1, "arguments": "{}"}}]),
    b"[" * 100_000,
]


@pytest.mark.parametrize("reply", BROKEN, ids=lambda reply: str(reply)[:30])
def test_an_invalid_answer_is_retried_and_then_reported_in_one_line(
    server: MockServer, reply: Any
) -> None:
    server.speak = saying(reply, chat("whole"))
    mended = body(asking(server), soon(call()))
    asked = len(server.asked)
    server.speak = saying(reply)
    failed = failure(asking(server, retries=0), soon(call()))

    assert (mended.text, asked) == ("whole", 2)
    assert (failed.code, failed.retriable) == ("bad_answer", True)
    assert "\n" not in failed.message
    assert len(failed.message) < 1000


def test_a_truncated_body_is_retried(server: MockServer) -> None:
    server.speak = saying(Reply(chat("cut"), keep=20), Reply(chat("cut"), keep=0), chat("whole"))

    assert body(asking(server), soon(call())).text == "whole"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "reply",
    [
        Reply({"error": "boom"}, 500),
        Reply(b"bad gateway", 502),
        Reply({}, 503, {"Retry-After": "0"}),
        Reply({}, 408),
        Reply({"error": {"message": "slow down"}}, 429),
        Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.1"}),
        {"error": {"message": "overloaded"}},
        {"error": {"code": 429, "message": "slow down"}},
    ],
    ids=str,
)
def test_a_temporary_server_error_is_retried_until_the_calls_deadline(
    server: MockServer, reply: Any
) -> None:
    server.speak = saying(reply, reply, chat("well again"))

    assert body(asking(server, retries=0), soon(call())).text == "well again"
    assert len(server.asked) == 3


def test_a_server_full_beyond_the_calls_deadline_is_busy(server: MockServer) -> None:
    server.speak = saying(Reply({"error": {"message": "full"}}, 429, {"Retry-After": "60"}))

    failed = failure(asking(server), soon(call()))

    assert (failed.code, failed.retriable, len(server.asked)) == ("busy", True, 1)
    assert "is full (429): full (tried 1 times)" in failed.message


def test_an_unreachable_server_is_reported_with_address_and_without_key(
    server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    engine = asking(server, base_url="http://127.0.0.1:1/v1", api_key_env="MY_KEY")

    failed = failure(engine, soon(call(), 0.4))

    assert (failed.code, failed.retriable) == ("server_away", True)
    assert "the server at http://127.0.0.1:1/v1 cannot be reached" in failed.message
    assert failed.message.count("is it running?") == 1
    assert KEY not in failed.message


def test_a_server_that_never_answers_times_out(server: MockServer) -> None:
    gate = threading.Event()
    server.speak = saying(Reply(chat("late"), until=gate))

    failed = failure(asking(server, timeout_s=0.2), soon(call(), 0.1))
    gate.set()

    assert (failed.code, failed.retriable) == ("server_away", True)
    assert "did not answer within 0.2 s" in failed.message


def test_deadlines_follow_the_clock_of_the_log(server: MockServer) -> None:
    server.speak = saying(Reply({}, 503))
    engine = asking(server)
    engine.expire(1_000)  # this machine's clock is half a century ahead

    failed = failure(engine, replace(call(), not_after_ms=1_300))

    assert failed.code == "server_away"
    assert len(server.asked) in (1, 2)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0),
        ("soon", 0),
        ("-5", 0),
        ("2.5", 2.5),
        ("1e999", 1e9),
        ("nan", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_is_a_number_of_seconds(value: str, seconds: float) -> None:
    assert _after_s({"Retry-After": value}) == seconds


def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1))

    assert 3000 < _after_s({"Retry-After": date}) <= 3600


# The thread of the engine


def test_concurrent_requests_stay_within_the_limit(server: MockServer) -> None:
    gate = threading.Event()
    server.speak = saying(Reply(chat(), until=gate))
    engine = asking(server, concurrency=2)
    for number in range(5):
        engine.add(soon(call(f"r{number}")))
    assert engine.step() == []
    handed_back = engine.expire(int((time.time() + 60) * 1000))
    gate.set()

    assert [each.rollout_id for each in handed_back] == ["r2", "r3", "r4"]
    assert [answer.call.rollout_id for answer in run(engine)] in (["r0", "r1"], ["r1", "r0"])


def test_an_aborted_request_may_be_repeated(server: MockServer) -> None:
    gate = threading.Event()
    server.speak = saying(Reply(chat("first"), until=gate), chat("second"))
    engine = asking(server)
    engine.add(soon(call("r")))
    engine.step()
    engine.abort("r", 1)
    gate.set()

    answers = run(engine, soon(call("r")))

    assert all(isinstance(answer.body, ModelAnswered) for answer in answers)
    assert len(answers) == 1
    assert not engine.busy()


def test_a_released_engine_ends_its_thread(server: MockServer) -> None:
    server.speak = saying(chat())
    engine = asking(server)
    body(engine, call())
    began = [thread for thread in threading.enumerate() if thread.name == "openai"]

    del engine
    gc.collect()

    assert began
    assert not any(thread.is_alive() for thread in began)


def test_new_weights_of_a_served_policy_are_refused(server: MockServer, lake: Path) -> None:
    engine = asking(server)

    with pytest.raises(Unfit, match=r"version 3 of 'policy' is announced.* 'm' at http://127"):
        engine.stage(version_of(lake, 3))

    assert isinstance(failure(engine, call(said=[])), CallFailed)
