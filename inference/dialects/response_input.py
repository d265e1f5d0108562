"""Convert the input items of a request to OpenAI's responses into messages.

A turn of the assistant is a message item followed by its calls: several items there, one message
here. Earlier items may be sent back whole or by reference. Reasoning items are ignored: no policy
here produced them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from rollcall.inference.dialects.dialect import Conversations, Declined
from rollcall.inference.dialects.read_body import Many
from rollcall.inference.dialects.tool_results import BodyMessage, ToolCallPlace, match_results
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of, tool_calls_text
from rollcall.schemas.untrusted_text import clean_text

NAME_CHARS = 80
MOST_DIGITS = 6
BEFORE = "previous_response_id"
"""The field that names a response whose calls and results the session holds."""


@dataclass(frozen=True, slots=True)
class _Part:
    type: Literal["input_text", "output_text"]
    text: str


@dataclass(frozen=True, slots=True)
class _InputMessage:
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Many[_Part]
    type: Literal["message"] | None = None


@dataclass(frozen=True, slots=True)
class _FunctionCall:
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class _CallOutput:
    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[_Part]


@dataclass(frozen=True, slots=True)
class _Reasoning:
    type: Literal["reasoning"]


@dataclass(frozen=True, slots=True)
class _ItemReference:
    type: Literal["item_reference"]
    id: str


def _type_of(item: object) -> str:
    """Return the type of an item; items without one are messages."""
    return item.get("type") or "message" if isinstance(item, dict) else "message"


Item = Annotated[
    Annotated[_InputMessage, Tag("message")]
    | Annotated[_FunctionCall, Tag("function_call")]
    | Annotated[_CallOutput, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")]
    | Annotated[_ItemReference, Tag("item_reference")],
    Discriminator(_type_of),
]


@dataclass(slots=True)
class _Turn:
    role: str
    content: str
    calls: list[ToolCall]
    place: str
    call_id: str = ""
    places: list[ToolCallPlace] = field(default_factory=list)

    def body_message(self) -> BodyMessage:
        message = Message(self.role, self.content, tool_calls_text(self.calls), self.call_id)
        return BodyMessage(message, self.place, self.places)


def turns_of(
    items: str | Sequence[Any], before: Sequence[Message], earlier: Conversations
) -> tuple[Message, ...]:
    """Return earlier messages, then the items as messages; calls join the turn that they follow.

    Raises Declined: 404 for a reference to an item that this session did not return, 400 for a
    result without its call.
    """
    if isinstance(items, str):
        return (*before, Message("user", items))
    turns: list[_Turn] = []
    for at, item in enumerate(items):
        found = _referred_item(item, earlier) if isinstance(item, _ItemReference) else item
        _add(turns, found, f"input[{at}].call_id")
    earlier_turns = map(_earlier_turn, before)
    return match_results([*earlier_turns, *(turn.body_message() for turn in turns)])


def _earlier_turn(message: Message) -> BodyMessage:
    calls = [
        ToolCallPlace(call.id, call.name, BEFORE) for call in tool_calls_of(message.tool_calls)
    ]
    return BodyMessage(message, BEFORE, calls)


def _add(turns: list[_Turn], item: Any, place: str) -> None:
    if isinstance(item, _InputMessage):
        role = "system" if item.role == "developer" else item.role
        turns.append(_Turn(role, _joined(item.content), [], place))
    elif isinstance(item, _CallOutput):
        turns.append(_Turn("tool", _joined(item.output), [], place, item.call_id))
    elif isinstance(item, _FunctionCall):
        if not turns or turns[-1].role != "assistant":
            turns.append(_Turn("assistant", "", [], place))
        turns[-1].calls.append(ToolCall(item.call_id, item.name, item.arguments))
        turns[-1].places.append(ToolCallPlace(item.call_id, item.name, place))


def _joined(content: str | Sequence[_Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _referred_item(
    reference: _ItemReference, earlier: Conversations
) -> _InputMessage | _FunctionCall:
    """Return the item that `items_of` returned under this id."""
    kind, _, name = reference.id.partition("_")
    name, _, number = name.rpartition("_") if kind == "fc" else (name, "", "")
    turns = earlier.get(f"resp_{name}")
    if turns and kind == "msg":
        return _InputMessage("assistant", turns[-1].content)
    calls = tool_calls_of(turns[-1].tool_calls) if turns and kind == "fc" else ()
    at = int(number) if number.isdecimal() and len(number) <= MOST_DIGITS else len(calls)
    if at < len(calls):
        return _FunctionCall("function_call", calls[at].id, calls[at].name, calls[at].arguments)
    name = clean_text(reference.id, NAME_CHARS)
    msg = (
        f"Item with id '{name}' not found. Items are not persisted when "
        "`store` is set to false. Try again with `store` set to true, or remove this item from "
        "your input."
    )
    raise Declined(404, "not_found", msg, param="input")
