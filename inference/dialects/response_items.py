"""What a policy said as the items of a response of OpenAI's."""

from typing import Any

from schemas.asks import Choice, ModelReply
from schemas.tool_calls import ToolCall, tool_calls_of

Value = dict[str, Any]


def items_of(reply: ModelReply) -> list[Value]:
    """A message unless it would be empty beside calls, then the calls."""
    choice = reply.choices[0]
    calls = tool_calls_of(choice.tool_calls)
    said = [_message_item(reply, choice)] if choice.text or not calls else []
    return said + [_call_item(reply, at, call) for at, call in enumerate(calls)]


def _message_item(reply: ModelReply, choice: Choice) -> Value:
    return {
        "type": "message",
        "id": f"msg_{reply.id}",
        "role": "assistant",
        "status": "incomplete" if choice.finish == "length" else "completed",
        "content": [_text_part(choice.text)],
    }


def _text_part(text: str) -> Value:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(reply: ModelReply, at: int, call: ToolCall) -> Value:
    return {
        "type": "function_call",
        "id": f"fc_{reply.id}_{at}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }
