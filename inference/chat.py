"""Templates: they render new messages as the tokens that follow the known ones.

A conversation is a token sequence that only grows. A template renders the suffix alone: the prefix
is never decoded, rendered or tokenised again, so training sees exactly the sampled tokens. The glue
between turns belongs to the added tokens (mask 0). The token that ends an answer is the policy's
own when it was sampled (mask 1), and part of the glue when the answer was cut. Rendering turn by
turn must give the same tokens as rendering the whole conversation; a template that does not (it
drops old reasoning, trims answers, renumbers) is refused.

A call with tools can be rendered only if the template declares a tool format, such as
`"tools": "hermes"` (`rollcall.inference.tools`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from rollcall.inference.shielded_text import Shield, TextGuard
from rollcall.inference.template_probes import Said, probe_message_form, shows_tools
from rollcall.inference.tools import (
    FORMATS,
    NONE,
    detect_format,
    format_of,
    no_form,
    offered_in,
    unwritable,
    with_tools_written,
)
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import arguments_of

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"
"""The role of the policy's own messages."""
TOOL_ROLES = {"system", "assistant", "tool"}
"""Roles of messages that hold tool definitions, calls and results."""


class Template(Protocol):
    """A template: it turns messages into token ids."""

    digest: str
    """The template's id in every answer; templates that render differently have different ones."""
    end_ids: frozenset[int]
    """The tokens with which the policy itself ends an answer; empty when it has none."""
    tool_format: str
    """The format of tool calls in an answer: a name of `rollcall.inference.tools`, or `none`."""

    def render(
        self, messages: Sequence[Message], *, first: bool, ended: bool, tools: str = ""
    ) -> list[int]:
        """Return the tokens that the messages add, including the opening of the next answer.

        `first`: the sequence begins here. `ended`: the known tokens end with one of `end_ids`.
        With known tokens and no messages the result is empty: the answer continues where it was
        cut. Raises WorkFailed(`not_renderable`) for messages that it has no form for.
        """
        ...


def template_of(spec: Mapping[str, Any], tokenizer: Any) -> Template:
    """Make the template that a policy directory names; raises Refused for an invalid spec.

    `{"kind": "words", "bos": "<bos>", "turn": "<a>"}`: bare contents, `turn` opens an answer.
    `{"kind": "chatml"}`: the well-known turns, optional `bos`.
    `{"kind": "roles", "bos", "before": {role: text}, "after": {role: text}, "end", "glue"}`.
    `{"kind": "jinja"}`: the tokenizer's own chat template.
    All but words may declare `"tools"`, the format in which the policy was taught to call them.
    """
    known: dict[str, Callable[..., Template]] = {
        "words": _words,
        "chatml": _chatml,
        "roles": RoleTemplate,
        "jinja": JinjaTemplate,
    }
    fields = dict(spec)
    kind = fields.pop("kind", None)
    if kind not in known:
        msg = f"template of kind {kind!r}; known are {', '.join(known)}"
        raise Refused(msg)
    try:
        return known[kind](tokenizer, **fields)
    except TypeError as error:
        msg = f"template {dict(spec)!r} cannot be made: {error}"
        raise Refused(msg) from error


def _words(tokenizer: Any, *, bos: str, turn: str, end: str = "") -> "RoleTemplate":
    before = dict.fromkeys(ROLES, "") | {"assistant": turn}
    return RoleTemplate(tokenizer, bos=bos, before=before, end=end, kind="words")


def _chatml(tokenizer: Any, *, bos: str = "", tools: str = NONE) -> "RoleTemplate":
    before = {role: f"<|im_start|>{role}\n" for role in ROLES}
    after = {role: "<|im_end|>\n" for role in ROLES if role != "assistant"}
    return RoleTemplate(
        tokenizer,
        bos=bos,
        before=before,
        after=after,
        end="<|im_end|>",
        glue="\n",
        tools=tools,
        kind="chatml",
    )


class RoleTemplate:
    """A template of fixed texts: `bos`, then per message `before[role]`, content, `after[role]`.

    An answer is `before["assistant"]`, the sampled tokens, `end` (the policy's), `glue` (ours).
    Each piece is tokenised separately, so a suffix never depends on the text before it. Control
    tokens spelled out in a message or a tool stay plain text (`rollcall.inference.shielded_text`).
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        before: Mapping[str, str],
        after: Mapping[str, str] | None = None,
        bos: str = "",
        end: str = "",
        glue: str = "",
        tools: str = NONE,
        kind: str = "roles",
    ) -> None:
        after = after or {}
        spec = {"before": before, "after": after, "bos": bos, "end": end, "glue": glue}
        self.tool_format, self._tools = tools, format_of(tools, tokenizer)
        self._kind, self._tokenizer = kind, tokenizer
        self._roles = frozenset(before)
        if tools != NONE and (why := self._no_format(tools)):
            msg = f'template {kind!r} declares "tools": "{tools}", but {why}'
            raise Refused(msg)
        if tools != NONE:
            spec["tools"] = tools
        self.spec = spec
        """The texts that the template consists of."""
        self.digest = digest("roles", json.dumps(spec, sort_keys=True)).hex()
        self._content = _memory_of(tokenizer, split_special_tokens=True)
        control = _memory_of(tokenizer, split_special_tokens=False)
        self._bos, self._end, self._glue = control(bos), control(end), control(glue)
        self._before = {role: control(text) for role, text in before.items()}
        self._after = {role: control(text) for role, text in after.items()}
        pieces = {text: control(text) for text in (bos, end, *before.values(), *after.values())}
        marks = {text: ids[0] for text, ids in pieces.items() if _is_mark(text) and len(ids) == 1}
        self._shield = Shield(tokenizer, marks)
        self._after["assistant"] = self._end + self._glue
        if "assistant" not in before or len(self._end) > 1:
            msg = (
                f"role template {spec!r} needs `before` for the assistant, and an `end` that is "
                f"one token (here {len(self._end)})"
            )
            raise Refused(msg)
        self.end_ids = frozenset(self._end)

    def render(
        self, messages: Sequence[Message], *, first: bool, ended: bool, tools: str = ""
    ) -> list[int]:
        if not first and not messages:
            return []
        if self._tools is None and _has_tools(messages, tools):
            raise self._no_form()
        offered = offered_in(tools) if first and tools else None
        texts = [[message.content, message.tool_calls] for message in messages]
        guard = self._shield.guard([texts, offered])
        messages = [_hidden(guard, message) for message in messages]
        if self._tools is not None:
            hidden = "" if offered is None else json.dumps(guard.hide(offered), ensure_ascii=False)
            messages = with_tools_written(self._tools, messages, hidden)
        ids = self._opening(first, ended)
        for message in messages:
            ids += self._before_of(message.role)
            ids += guard.encode(message.content, self._content)
            ids += self._after.get(message.role, ())
        ids += self._before["assistant"]
        return ids

    def _no_form(self) -> WorkFailed:
        why_not = {name: why for name in FORMATS if (why := self._no_format(name))}
        others = [name for name in why_not if not unwritable(name, self._tokenizer)]
        return no_form(self._kind, why_not, others)

    def _no_format(self, name: str) -> str:
        """Return the reason why it cannot declare a tool format; empty if it can."""
        if self._kind == "words":
            return "a template of kind words takes no tools, those of kind chatml and roles do"
        if missing := TOOL_ROLES - self._roles:
            return f"it has no `before` for {' and '.join(sorted(missing))}"
        return unwritable(name, self._tokenizer)

    def _opening(self, first: bool, ended: bool) -> list[int]:
        if first:
            return list(self._bos)
        return list(self._glue if ended else self._end + self._glue)

    def _before_of(self, role: str) -> tuple[int, ...]:
        try:
            return self._before[role]
        except KeyError:
            msg = f"a message of role {role!r}; the template knows {', '.join(self._before)}"
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False) from None


def _is_mark(text: str) -> bool:
    """Return True if a template's text is in brackets: messages hardly contain it by chance."""
    return re.fullmatch(r"[<\[]\S+[>\]]", text) is not None


def _hidden(guard: TextGuard, message: Message) -> Message:
    own = message.role == ASSISTANT
    return replace(
        message,
        content=guard.hide(message.content, own=own),
        tool_calls=guard.hide(message.tool_calls, own=own),
    )


def _memory_of(tokenizer: Any, *, split_special_tokens: bool) -> Callable[[str], tuple[int, ...]]:
    """Return a cached encoder: small tasks repeat their texts, and encoding costs 50 us."""

    @lru_cache(maxsize=4096)
    def encode(text: str) -> tuple[int, ...]:
        if not text:
            return ()
        try:
            return tuple(
                tokenizer.encode(
                    text, add_special_tokens=False, split_special_tokens=split_special_tokens
                )
            )
        except Exception as error:  # the Rust tokenizers raise nothing narrower
            msg = (
                f"the tokenizer has no tokens for {text[:80]!r}: {error}; add the words that are "
                "missing to tokens of [policy], or <unk> to read every other word as unknown"
            )
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False) from error

    return encode


def _has_tools(messages: Sequence[Message], tools: str) -> bool:
    return bool(tools) or any(message.tool_calls for message in messages)


ANSWER = "An answer, 5d1c."
PROBES = ("{}", "<think>\nA plan.\n</think>\n\n{}", " {}\n")


class JinjaTemplate:
    """The tokenizer's own chat template; new messages are rendered by difference.

    The text that a message adds is a stand-in conversation rendered with it, minus the same
    conversation rendered without it.
    Control tokens spelled out in a message, a tool or a call stay plain text
    (`rollcall.inference.shielded_text`).
    """

    def __init__(self, tokenizer: Any, *, tools: str | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None) or not tokenizer.eos_token:
            msg = "template of kind jinja, but the tokenizer has no chat template, or no end token"
            raise Refused(msg)
        self._tokenizer, self._jinja = tokenizer, tokenizer.chat_template
        self._shield = Shield(tokenizer)
        self._control = partial(tokenizer.encode, add_special_tokens=False)
        self._end = tokenizer.eos_token
        self.end_ids = frozenset({tokenizer.eos_token_id})
        format_of(tools or NONE, tokenizer)
        self.tool_format = tools or detect_format(tokenizer.chat_template, tokenizer)
        declared = (tools,) if tools and tools != NONE else ()
        self.digest = digest("jinja", tokenizer.chat_template, self._end, *declared).hex()
        self._refuse_if_it_looks_back()
        self._message_form = probe_message_form(self._text, self._suffix, self.tool_format)

    def render(
        self, messages: Sequence[Message], *, first: bool, ended: bool, tools: str = ""
    ) -> list[int]:
        if self.tool_format == NONE and _has_tools(messages, tools):
            raise self._no_form()
        turns = self._message_form.fitted([_as_dict(message) for message in messages], first=first)
        offered = offered_in(tools) if tools else None
        guard = self._shield.guard([turns, offered])
        turns = [guard.hide(each, own=each["role"] == ASSISTANT) for each in turns]
        offered = guard.hide(offered)
        if first:
            text = self._text(turns, offered, open_answer=True)
        else:
            text = self._suffix(turns, ended, offered) if turns else ""
        return guard.encode(text, self._control)

    def _no_form(self) -> WorkFailed:
        """Return the error of `rollcall.inference.tools.no_form`.

        A template that renders tools in its own way is taken as what the policy was taught, so
        kind roles is offered only for formats that its text matches.
        """
        why_not, others = {}, []
        for name, of in FORMATS.items():
            why, shown = unwritable(name, self._tokenizer), False
            if not why:
                why, shown = self._no_format(name)
                others += [name] if not shown or of.taught.search(self._jinja) else []
            if why:
                why_not[name] = why
        return no_form("jinja", why_not, others)

    def _no_format(self, name: str) -> tuple[str, bool]:
        """Return why the template cannot declare a format (or ""), and whether it renders tools."""
        shown = shows_tools(self._message_form, self._text)
        try:
            probe_message_form(self._text, self._suffix, name)
        except Refused as error:
            return str(error), shown
        return "" if shown else "the chat template tells nothing of tools", shown

    def _suffix(self, messages: Sequence[Said], ended: bool, tools: Any) -> str:
        known = [_message("user", "A question."), _message("assistant", ANSWER)]
        if calls := _calls_of(messages):  # some templates take results only after calls
            known[1]["tool_calls"] = calls
        before = self._text(known, tools, open_answer=False)
        after = self._text([*known, *messages], tools, open_answer=True)
        head, end, glue = before.rpartition(self._end)
        answered = head.rpartition(ANSWER)[2].strip() == "" and ANSWER in head
        if not after.startswith(before) or not end or not (answered or calls):
            msg = (
                f"the chat template looks back: new messages change {before!r} into "
                f"{after[: len(before)]!r}; name a template of kind roles in rollcall.json"
            )
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
        added = after[len(before) :]
        return glue + added if ended else end + glue + added

    def _refuse_if_it_looks_back(self) -> None:
        """Raise Refused unless rendering turn by turn and at once gives the same text."""
        question, more = [_message("user", "A question.")], [_message("user", "And now?")]
        for probe in PROBES:
            answer = probe.format(ANSWER)
            whole = [*question, _message("assistant", answer), *more]
            try:
                turns = self._text(question, None, open_answer=True) + answer
                turns += self._suffix(more, ended=False, tools=None)
                at_once = self._text(whole, None, open_answer=True)
            except WorkFailed as error:
                raise Refused(str(error)) from error
            if turns != at_once:
                msg = (
                    f"the tokenizer's chat template is not prefix-stable: turn by turn it renders "
                    f"{turns!r}, at once {at_once!r}; name a template of kind roles in "
                    "rollcall.json"
                )
                raise Refused(msg)

    def _text(self, messages: Sequence[Said], tools: Any, *, open_answer: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tools=tools, add_generation_prompt=open_answer, tokenize=False
                )
            )
        except (TemplateError, ValueError, TypeError) as error:
            msg = f"the chat template cannot render {[m['role'] for m in messages]!r}: {error}"
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False) from error


def _calls_of(messages: Sequence[Said]) -> list[Said]:
    """Return stand-in calls for the tool results at the beginning of new messages."""
    results = takewhile(lambda message: message["role"] == "tool", messages)
    return [
        {
            "id": result.get("tool_call_id") or f"call_{at}",
            "type": "function",
            "function": {"name": result.get("name") or "f", "arguments": {}},
        }
        for at, result in enumerate(results)
    ]


def _message(role: str, content: str) -> Said:
    return {"role": role, "content": content}


def _as_dict(message: Message) -> Said:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [_as_templates_read(call) for call in json.loads(message.tool_calls)]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.name:
        fields["name"] = message.name
    return fields


def _as_templates_read(call: dict[str, Any]) -> dict[str, Any]:
    """Return the call with its arguments as an object: chat templates serialise it themselves."""
    given = call["function"]["arguments"]
    value = arguments_of(given)
    return call | {"function": call["function"] | {"arguments": given if value is None else value}}
