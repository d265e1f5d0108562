"""Requests to a server with the OpenAI API, and the reading of its answers; no HTTP.

`ChatMessages` sends the conversation as messages: every such server supports that, but none returns
the exact tokens of a longer conversation, so all answers are untrainable. `TokenCompletions` sends
the tokens themselves, rendered here, and reads the sampled ones (`return_token_ids`, as in vLLM and
SGLang): trainable where ids and log-probabilities are returned
(`rollcall.inference.reported_tokens`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollcall.inference import transcript_ids
from rollcall.inference.chat import Template
from rollcall.inference.reported_tokens import reported_ids, reported_logprobs
from rollcall.inference.stream_text import cut_at
from rollcall.inference.tools import NONE, calls_in
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import Message, ModelAnswered, ModelCall
from rollcall.schemas.packed import ids_of, pack_ids, pack_logprobs
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of, tool_calls_text
from rollcall.schemas.untrusted_text import clean_text, describe_value

VERSION = 0
"""The version of all answers: we do not change the server's weights, so there is only one."""
SEEDS = 1 << 31
"""The bound of seeds, since some servers keep a seed in 32 bits."""
FINISHES = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "abort": "aborted",
    "aborted": "aborted",
}
"""Our finish reason for each of the server's; any other, or a missing one, is `other`."""


class BadAnswer(Exception):
    """An answer without usable content; the request is sent again."""


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """The request for one call."""

    call: ModelCall
    body: dict[str, Any]
    added: list[int]
    """The ids that the call adds to its sequence."""


class Api(Protocol):
    """One API of such a server."""

    path: str

    def request_for(self, call: ModelCall) -> ServerRequest:
        """Return the request for a call. Raises WorkFailed for a call that cannot be sent."""
        ...

    def read_answer(self, request: ServerRequest, payload: Mapping[str, Any]) -> ModelAnswered:
        """Read an answer. Raises BadAnswer, or InvalidReport for tokens that were never sampled."""
        ...


def answer_without_sampling(api: Api, request: ServerRequest) -> ModelAnswered | None:
    """Return the answer to a call that samples nothing; None for a call that needs a request."""
    if request.call.sampling.max_tokens:
        return None
    body = {"choices": [{"text": "", "message": {"content": ""}, "finish_reason": "length"}]}
    return api.read_answer(request, body)


class ChatMessages:
    """The API `/chat/completions`; `extra` is put into every body."""

    path = "chat/completions"

    def __init__(self, model: str, extra: Mapping[str, Any]) -> None:
        self._model, self._extra = model, dict(extra)

    def request_for(self, call: ModelCall) -> ServerRequest:
        known = transcript_ids.messages_of(ids_of(_prefix(call)).tolist())
        if not call.messages:
            msg = "no message is new, and a server of messages cannot continue a cut answer"
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
        added = transcript_ids.message_ids(call.messages)
        messages = [_message(each) for each in (*known, *call.messages)]
        body = {"model": self._model, "messages": messages, **_sampling_fields(call)}
        if call.tools:
            body["tools"] = _tools(call.tools)
        added.append(transcript_ids.MARK["assistant"])
        return ServerRequest(call, {**body, **self._extra}, added)

    def read_answer(self, request: ServerRequest, payload: Mapping[str, Any]) -> ModelAnswered:
        choice = _choice(payload)
        message = choice.get("message")
        if not isinstance(message, dict):
            msg = f"its choice holds no message, found {describe_value(message)}"
            raise BadAnswer(msg)
        text = _text(message.get("content") or message.get("refusal") or "")
        text, stopped_by = _cut_at_stop(choice, text, request.call)
        calls = _tool_calls(message.get("tool_calls"), request.call.command_id)
        ids = transcript_ids.answer_ids(text, calls)
        return _answer(
            request,
            choice,
            (text, calls, stopped_by),
            ids,
            [],
            transcript_ids.DIGEST,
            "no_token_ids",
        )


class TokenCompletions:
    """The API `/completions` with token ids as prompt; tokenizer and template are the model's, and
    `vocabulary` is its number of ids."""

    path = "completions"

    def __init__(
        self,
        model: str,
        extra: Mapping[str, Any],
        tokenizer: Any,
        template: Template,
        vocabulary: int,
    ) -> None:
        self._model, self._extra = model, dict(extra)
        self._tokenizer, self._template = tokenizer, template
        self._vocabulary = vocabulary

    def request_for(self, call: ModelCall) -> ServerRequest:
        prefix = ids_of(_prefix(call)).tolist()
        template = self._template
        ended = bool(prefix) and prefix[-1] in template.end_ids
        added = template.render(call.messages, first=not prefix, ended=ended, tools=call.tools)
        if not prefix and not added:
            msg = "neither prefix nor messages gave a token to begin with"
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
        body = {"model": self._model, "prompt": prefix + added, **_sampling_fields(call)}
        body |= {"logprobs": 1, "return_token_ids": True, **self._extra}
        return ServerRequest(call, body, added)

    def read_answer(self, request: ServerRequest, payload: Mapping[str, Any]) -> ModelAnswered:
        choice = _choice(payload)
        text = _text(choice.get("text"))
        sampling, logprobs = request.call.sampling, list[float]()
        ids = reported_ids(choice, text, sampling.max_tokens, self._tokenizer, self._vocabulary)
        if ids is None:
            untrainable = "no_token_ids"
            ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        else:
            wanted = request.body.get("logprobs") not in (None, False)
            untrainable, logprobs = reported_logprobs(choice, len(ids), sampling, asked=wanted)
            if _reported_prompt(choice, payload) not in (None, request.body["prompt"]):
                untrainable, logprobs = "other_prompt", []
        form = self._template.tool_format if request.call.tools else NONE
        text, stopped_by = _cut_at_stop(choice, text, request.call)
        text, calls = calls_in(form, text, request.call.command_id)
        spoken = text, calls, stopped_by
        return _answer(request, choice, spoken, ids, logprobs, self._template.digest, untrainable)


def _prefix(call: ModelCall) -> bytes:
    if call.prefix_ids is None and call.prefix_length:
        msg = f"the prefix of {call.prefix_length} tokens is not held here; send all of it"
        raise WorkFailed(FailureCode.PREFIX_NEEDED, msg, retriable=True)
    return call.prefix_ids or b""


def _sampling_fields(call: ModelCall) -> dict[str, Any]:
    """Return the sampling fields; unset ones are left out, as not every server supports all."""
    sampling = call.sampling
    body: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": call.seed % SEEDS,
        "stream": False,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if stop := [each for each in sampling.stop if each]:
        body["stop"] = stop
    return body


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": each.id,
                "type": "function",
                "function": {"name": each.name, "arguments": each.arguments},
            }
            for each in tool_calls_of(message.tool_calls)
        ]
    for name in ("name", "tool_call_id"):
        if value := getattr(message, name):
            fields[name] = value
    return fields


def _tools(tools: str) -> Any:
    try:
        return json.loads(tools)
    except (ValueError, RecursionError) as error:
        msg = f"tools must be a JSON list, found {clean_text(tools, 80)!r}"
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False) from error


def _choice(payload: Mapping[str, Any]) -> dict[str, Any]:
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        msg = f"it holds no choice, found {describe_value(dict(payload))}"
        raise BadAnswer(msg)
    return choices[0]


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"its text is none, found {describe_value(value)}"
        raise BadAnswer(msg)
    return clean_text(value)


def _tool_calls(value: Any, command_id: bytes) -> str:
    """Return canonical tool calls, with ids that are a function of the command's id."""
    head = f"call_{command_id.hex()[:24]}"
    try:
        calls = [
            ToolCall(f"{head}_{at}", _text(one["name"]), _text(one["arguments"]))
            for at, one in enumerate(each["function"] for each in value or ())
        ]
    except (TypeError, KeyError, IndexError) as error:
        msg = f"its tool calls are none, found {describe_value(value)}"
        raise BadAnswer(msg) from error
    return tool_calls_text(calls)


def _reported_prompt(choice: Mapping[str, Any], payload: Mapping[str, Any]) -> object:
    """Return the prompt's token ids as the server reports them; None if it does not."""
    return choice.get("prompt_token_ids") or payload.get("prompt_token_ids")


def _cut_at_stop(choice: Mapping[str, Any], text: str, call: ModelCall) -> tuple[str, str]:
    """Return text and the stop string that ended it; some servers leave it in, some name it."""
    text, found = cut_at(text, call.sampling.stop)
    reason = choice.get("stop_reason")
    named = reason if isinstance(reason, str) and reason in call.sampling.stop else ""
    return text, found or named


def _answer(
    request: ServerRequest,
    choice: Mapping[str, Any],
    spoken: tuple[str, str, str],
    ids: list[int],
    logprobs: list[float],
    template_digest: str,
    untrainable: str,
) -> ModelAnswered:
    """Build the answer; `spoken` is text, tool calls and stop string."""
    call, (text, calls, stopped_by) = request.call, spoken
    finish = choice.get("finish_reason")
    logprobs = logprobs or [0.0] * len(ids)
    return ModelAnswered(
        text=text,
        tool_calls=calls,
        added_ids=pack_ids(request.added),
        token_ids=pack_ids(ids),
        logprobs=pack_logprobs(logprobs),
        versions=pack_ids([VERSION] * len(ids)),
        finish_reason=FINISHES.get(finish, "other") if isinstance(finish, str) else "other",
        policy_id=call.policy_id,
        sequence=call.sequence,
        engine="openai",
        precision="",
        template_digest=template_digest,
        stopped_by=stopped_by,
        untrainable=untrainable,
    )
