"""Probes of a tokenizer's chat template with whole conversations, when its policy is loaded.

A valid template may refuse messages that every agent sends at its second turn: a system message,
ids of calls, results. So a conversation with all of these is rendered once. If the template renders
it only in another form, messages are converted to that form; if it renders none, the policy is
refused with the template's own reason.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rollcall.inference.tools import FORMATS, NONE
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed

Said = dict[str, Any]
"""A message in the form that chat templates read."""
Text = Callable[..., str]
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SHORT_ID = 9
"""The length of an id in the templates of Mistral's models: letters and digits only."""
CALL_ID = "call_00112233445566778899aabb_0"
"""An id in the form that calls get (`rollcall.inference.tools.calls_in`)."""
NAME = "peek_into"
TOOL = {"type": "function", "function": {"name": NAME, "description": "", "parameters": {}}}
ARGUMENTS = {"path": "a file"}
SPOKEN = "I begin."
OPENING: Sequence[Said] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A question."},
)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which a template takes messages."""

    folds_system: bool = False
    """True if a system message becomes the beginning of the first user message."""
    short_ids: bool = False
    """True if ids of calls are nine letters and digits."""

    def fitted(self, messages: Sequence[Said], *, first: bool) -> list[Said]:
        """Return the messages in that form; `first` if the conversation begins with them."""
        fitted = list(messages)
        if self.folds_system and first and [m["role"] for m in fitted[:2]] == ["system", "user"]:
            system, user, *rest = fitted
            fitted = [user | {"content": f"{system['content']}\n\n{user['content']}"}, *rest]
        return [_with_short_ids(message) for message in fitted] if self.short_ids else fitted


def probe_message_form(text: Text, suffix: Text, tool_format: str) -> MessageForm:
    """Return the first form in which a template renders a whole conversation.

    `text` renders messages, `suffix` those that come after an answer, as `JinjaTemplate` does.
    Raises Refused with the template's reason where it renders none.
    """
    refusals: list[str] = []
    for short_ids in (False, True):
        for folds_system in (False, True):
            form = MessageForm(folds_system, short_ids)
            try:
                _converse(form, text, suffix, tool_format)
            except WorkFailed as error:
                refusals.append(str(error))
            else:
                return form
    without = ""
    if tool_format != NONE:
        with suppress(Refused):
            probe_message_form(text, suffix, NONE)
            without = 'declare "tools": "none" there and call it without tools, or '
    msg = (
        f"the tokenizer's chat template renders no conversation with a system message"
        f"{'' if tool_format == NONE else ', calls and results'}: {refusals[0]}; in the policy's "
        f"rollcall.json, {without}name a template of kind roles"
    )
    raise Refused(msg)


def _converse(form: MessageForm, text: Text, suffix: Text, tool_format: str) -> None:
    opening = OPENING
    text(form.fitted(opening, first=True), None, open_answer=True)
    if tool_format == NONE:
        return
    call = {
        "id": CALL_ID,
        "type": "function",
        "function": {"name": NAME, "arguments": ARGUMENTS},
    }
    asked = _said("assistant", SPOKEN) | {"tool_calls": [call]}
    result = _said("tool", "found") | {"tool_call_id": CALL_ID}
    text(form.fitted(opening, first=True), [TOOL], open_answer=True)
    suffix(form.fitted([result], first=False), True, [TOOL])
    _require_tools_to_stay(form, text, suffix, opening)
    whole = form.fitted([*opening, asked, result], first=True)
    text(whole, [TOOL], open_answer=True)
    _require_readable(text(whole[:-1], [TOOL], open_answer=False), tool_format)


def shows_tools(form: MessageForm, text: Text) -> bool:
    """Return True if the template shows a policy its tools."""
    try:
        return NAME in text(form.fitted(OPENING, first=True), [TOOL], open_answer=True)
    except WorkFailed:  # it has no form for tools as they are given
        return False


def _require_tools_to_stay(
    form: MessageForm, text: Text, suffix: Text, opening: Sequence[Said]
) -> None:
    """Raise if a later question changes the earlier rendering of the tools."""
    begun, later = form.fitted(opening, first=True), [_said("user", "And now?")]
    turns = text(begun, [TOOL], open_answer=True) + SPOKEN + suffix(later, False, [TOOL])
    at_once = text([*begun, _said("assistant", SPOKEN), *later], [TOOL], open_answer=True)
    if turns != at_once:
        msg = f"it looks back where it tells of tools: turn by turn {turns!r}, at once {at_once!r}"
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)


def _require_readable(written: str, tool_format: str) -> None:
    """Raise if the template has written a call that the format cannot read."""
    told = written.rpartition(SPOKEN)[2] or written
    _, calls = FORMATS[tool_format].parsed(told)
    if NAME in told and [name for name, _ in calls] != [NAME]:
        msg = (
            f"its calls are read as {tool_format!r}, but it writes one as {told[-200:]!r}; known "
            f"formats are {', '.join(FORMATS)}"
        )
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)


def _with_short_ids(message: Said) -> Said:
    changed = dict(message)
    if "tool_calls" in changed:
        changed["tool_calls"] = [
            call | {"id": short_id(str(call.get("id", "")))} for call in changed["tool_calls"]
        ]
    if "tool_call_id" in changed:
        changed["tool_call_id"] = short_id(str(changed["tool_call_id"]))
    return changed


def short_id(name: str) -> str:
    """Return nine letters and digits for the id of a call, the same for the same one."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    letters = []
    for _ in range(SHORT_ID):
        number, digit = divmod(number, len(ALPHABET))
        letters.append(ALPHABET[digit])
    return "".join(letters)


def _said(role: str, content: str) -> Said:
    return {"role": role, "content": content}
