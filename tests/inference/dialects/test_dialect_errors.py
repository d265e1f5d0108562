"""Errors of every kind, in every dialect, and how the vendors' clients react to them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import anthropic
import openai
import orjson
import pytest

from rollcall.inference.dialects.dialect import Declined, TooLong
from rollcall.inference.dialects.routes import ROUTES, HttpAnswer, declined_by, models_body
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply
from tests.support.dialect_server import DialectServer, says

USER: list[Any] = [{"role": "user", "content": "Hello"}]
ENGINE = (
    "too_long: this model's maximum context length is 96 tokens. However, your messages resulted "
    "in 130 tokens."
)
Create = Callable[..., Any]


def chat(server: DialectServer, **options: Any) -> Create:
    create = server.openai(**options).chat.completions.create
    return lambda **more: create(model="p", messages=USER, **more)


def responses(server: DialectServer, **options: Any) -> Create:
    create = server.openai(**options).responses.create
    return lambda **more: create(model="p", input="x", **more)


def messages(server: DialectServer, **options: Any) -> Create:
    create = server.anthropic(**options).messages.create
    return lambda **more: create(model="p", max_tokens=5, messages=USER, **more)


VENDORS = pytest.mark.parametrize("vendor", [chat, responses, messages])


def declines(declined: Declined) -> DialectServer:
    return DialectServer(lambda request: declined)


ROWS = [
    (400, "invalid_request_error", {}, "BadRequestError", 1),
    (401, "invalid_api_key", {}, "AuthenticationError", 1),
    (404, "not_found", {}, "NotFoundError", 1),
    (429, "rate_limit_exceeded", {"retry_after_s": 0}, "RateLimitError", 3),
    (503, "unavailable", {"retry_after_s": 0}, "InternalServerError", 3),
    (503, "failed", {}, "InternalServerError", 1),
]
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "api_error",
}


@VENDORS
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_clients_raise_and_retry_according_to_the_error_table(vendor: Any, row: Any) -> None:
    status, code, more, raised, calls = row
    server = declines(Declined(status, code, "why it is so", **more))
    module = anthropic if vendor is messages else openai

    with pytest.raises(getattr(module, raised)) as error:
        vendor(server, max_retries=2)()

    assert server.calls == calls
    assert "why it is so" in error.value.message
    if vendor is messages:
        assert error.value.body["error"]["type"] == KINDS[status]
    else:
        assert error.value.code == code


@VENDORS
@pytest.mark.parametrize("stream", [False, True])
def test_a_too_long_prompt_is_refused_in_the_vendors_words(vendor: Any, stream: bool) -> None:
    server = DialectServer(lambda request: ErrorReply(request.d, 400, "too_long", ENGINE))

    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as error:
        vendor(server)(stream=stream)

    if vendor is messages:
        assert error.value.body["error"]["message"] == (
            "prompt is too long: 130 tokens > 96 maximum"
        )
    else:
        assert error.value.code == "context_length_exceeded"
        assert error.value.body["message"] == (
            "This model's maximum context length is 96 tokens. However, your messages resulted "
            "in 130 tokens."
        )


class Awake(DialectServer):
    """A server that sends keep-alive events in a stream."""

    def answer(self, path: str, body: bytes) -> HttpAnswer:
        found = super().answer(path, body)
        return replace(found, body=ROUTES[path].waiting * 3 + found.body)


class Late(DialectServer):
    """A server that fails within a stream that has begun."""

    def answer(self, path: str, body: bytes) -> HttpAnswer:
        dialect = ROUTES[path]
        declined = Declined(503, "failed", "all tries failed")
        events = dialect.waiting + dialect.waiting + dialect.error_event(declined)
        return HttpAnswer(200, {"Content-Type": "text/event-stream"}, events)


@VENDORS
def test_a_failure_within_a_stream_is_raised(vendor: Any) -> None:
    stream: Iterable[Any] = vendor(Late(says(Choice("x"))))(stream=True)

    with pytest.raises((openai.APIError, anthropic.APIError), match="all tries failed"):
        list(stream)


@VENDORS
def test_keep_alive_events_do_not_change_a_stream(vendor: Any) -> None:
    events = list(vendor(Awake(says(Choice("x"))))(stream=True))

    assert len(events) == len(list(vendor(DialectServer(says(Choice("x"))))(stream=True)))


def test_an_unknown_path_is_refused_in_its_vendors_form() -> None:
    server = DialectServer(says(Choice("x")))

    with pytest.raises(openai.NotFoundError, match="nothing answers /v1/embeddings"):
        server.openai().embeddings.create(model="p", input="x")
    with pytest.raises(anthropic.NotFoundError, match="nothing answers /v1/messages/batches"):
        server.anthropic().messages.batches.retrieve("x")


def test_a_recorded_error_is_final_unless_it_asks_for_a_retry() -> None:
    d = AgentRequest("model").d

    assert declined_by(ErrorReply(d, 503, "failed", "x")).headers == {"x-should-retry": "false"}
    assert declined_by(ErrorReply(d, 429, "rate", "x")).headers == {"Retry-After": "1"}
    assert declined_by(ErrorReply(d, 404, "over", "x")).headers == {}
    assert isinstance(declined_by(ErrorReply(d, 400, "too_long", ENGINE)), TooLong)
    assert str(declined_by(ErrorReply(d, 400, "too_long", "no numbers"))) == "no numbers"


def test_policies_are_listed_as_models() -> None:
    assert orjson.loads(models_body(["a", "b"])) == {
        "object": "list",
        "data": [
            {"id": name, "object": "model", "created": 0, "owned_by": "rollcall"} for name in "ab"
        ],
    }
