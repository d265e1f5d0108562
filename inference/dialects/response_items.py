"""The items of a response in OpenAI's form, made from an answer of a policy."""

from typing import Any

from rollcall.inference.dialects.dialect import ParsedRequest
from rollcall.inference.dialects.sampled_logprobs import sampled_logprobs
from rollcall.schemas.agent_requests import Choice, ModelReply
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of

Value = dict[str, Any]


def items_of(parsed: ParsedRequest, reply: ModelReply) -> list[Value]:
    """Return a message item, left out if it is empty beside calls, then the calls."""
    choice = reply.choices[0]
    calls = tool_calls_of(choice.tool_calls)
    said = [_message_item(parsed, reply, choice)] if choice.text or not calls else []
    return said + [_call_item(reply, at, call) for at, call in enumerate(calls)]


def _message_item(parsed: ParsedRequest, reply: ModelReply, choice: Choice) -> Value:
    return {
        "type": "message",
        "id": f"msg_{reply.id}",
        "role": "assistant",
        "status": "incomplete" if choice.finish == "length" else "completed",
        "content": [_text_part(parsed, choice)],
    }


def _text_part(parsed: ParsedRequest, choice: Choice) -> Value:
    told: list[Value] = []
    if parsed.request.logprobs:
        told = sampled_logprobs(choice, alternatives=parsed.alternatives, no_bytes=[])
    return {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": told}


def _call_item(reply: ModelReply, at: int, call: ToolCall) -> Value:
    return {
        "type": "function_call",
        "id": f"fc_{reply.id}_{at}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }
