"""The order of tool results: each is moved behind the turn whose call it answers.

Most chat templates write results without their ids, so a policy takes the first result for that of
its first call. But clients send results in any order, or lose one. So results are placed right
after the turns that called, in the order of the calls, before any other message. A result without
its call, a second result for a call, and a turn with results for only some of its calls are
refused; the refusal names the field. A turn without any result stays: its client gave it up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rollcall.inference.dialects.dialect import Declined
from rollcall.schemas.messages import Message
from rollcall.schemas.untrusted_text import clean_text

ID_CHARS = 80
NAMED_CALLS = 8
"""The most calls of a turn that a refusal names."""


class ToolCallPlace(NamedTuple):
    """A call of the assistant, and the field of the body that holds its id."""

    id: str
    name: str
    place: str


class BodyMessage(NamedTuple):
    """A message as it is in a body."""

    message: Message
    place: str = ""
    """The field that names the call of which this is the result."""
    calls: Sequence[ToolCallPlace] = ()


@dataclass(slots=True)
class _ToolTurns:
    """Adjacent turns of the assistant, and the messages to it after them."""

    turns: list[Message] = field(default_factory=list)
    calls: dict[str, ToolCallPlace] = field(default_factory=dict)
    duplicates: dict[str, ToolCallPlace] = field(default_factory=dict)
    """Calls with the id of an earlier one: a result cannot be matched to one of them."""
    results: dict[str, BodyMessage] = field(default_factory=dict)
    others: list[Message] = field(default_factory=list)

    def add_turn(self, item: BodyMessage) -> None:
        self.turns.append(item.message)
        for call in item.calls:
            if self.calls.setdefault(call.id, call) is not call:
                self.duplicates[call.id] = call

    def add_result(self, item: BodyMessage) -> None:
        name = item.message.tool_call_id
        if name not in self.calls:
            known = ", ".join(_shown(each) for each in list(self.calls)[:NAMED_CALLS]) or "none"
            msg = (
                f"is the id of no call in the assistant's turn before it, whose calls are {known}; "
                "send each result after that turn and before the next, under the id of its call"
            )
            raise _declined(item.place, name, msg)
        if name in self.duplicates:
            both = f"{self.calls[name].place} and {self.duplicates[name].place}"
            msg = f"is the id of two calls, {both}; give each call an id of its own"
            raise _declined(item.place, name, msg)
        if name in self.results:
            first = self.results[name].place
            msg = f"names a call that has its result at {first}; send one result for each call"
            raise _declined(item.place, name, msg)
        self.results[name] = item

    def messages(self) -> list[Message]:
        if not self.results:
            return self.turns + self.others
        answered = []
        for call in self.calls.values():
            if call.id not in self.results:
                msg = (
                    "is the id of a call without a result, beside others of its turn that have "
                    "one; send a result for each call of a turn"
                )
                raise _declined(call.place, call.id, msg)
            result = self.results[call.id].message
            renamed = result.name not in ("", call.name)  # else keep the object, which others share
            answered.append(replace(result, name=call.name) if renamed else result)
        return self.turns + answered + self.others


def match_results(items: Iterable[BodyMessage]) -> tuple[Message, ...]:
    """Return the messages with each result behind its call. Raises Declined (400)."""
    messages: list[Message] = []
    turns = _ToolTurns()
    for item in items:
        role = item.message.role
        if role == "assistant":
            if turns.results or turns.others:
                messages += turns.messages()
                turns = _ToolTurns()
            turns.add_turn(item)
        elif role == "tool":
            turns.add_result(item)
        else:
            turns.others.append(item.message)
    return (*messages, *turns.messages())


def _declined(place: str, name: str, message: str) -> Declined:
    return Declined(400, "invalid_request_error", f"{place} {_shown(name)} {message}", param=place)


def _shown(name: str) -> str:
    return clean_text(repr(name), ID_CHARS)
