"""A role template as a chat template in Jinja, for programs that load an exported policy.

`RoleTemplate` encodes each piece by itself; a chat template returns one text. So the export is
tried: it must give the tokens that the policy was trained with.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollcall.inference.chat import RoleTemplate, Template
from rollcall.inference.tools import HERMES, NONE
from rollcall.schemas.messages import Message

JOINERS = ("", " ")
"""Separators of two pieces: none, or a space where tokens are words separated by spaces."""
QUESTION, ANSWER = "s1 L", "R"
"""Words of the smallest shipped vocabulary; every other vocabulary reads them as plain text."""
PLACE = "@TOOLS@"
BODY = """\
{%- set before = @BEFORE@ %}{%- set after = @AFTER@ %}{%- set joiner = @JOINER@ %}
{%- set known = namespace(text=@BOS@, first=true) %}
{%- set told = namespace(text="") %}
{%- if tools %}
{%- for tool in tools %}
{%- set told.text = told.text + ("" if loop.first else "\\n") + (tool | tojson) %}
{%- endfor %}{%- set told.text = @PREFACE@ + told.text + @CLOSING@ %}
{%- if messages[0].role != "system" %}
{%- set known.text = known.text + joiner + before.system + told.text + after.system %}{%- endif %}
{%- endif %}
{%- for message in messages %}
{%- if message.role not in before %}
{{- raise_exception("no form for a message of role " + message.role) }}{%- endif %}
{%- set said = namespace(text=message.content or "") %}
{%- if loop.first and message.role == "system" and told.text %}
{%- set said.text = said.text + "\\n\\n" + told.text %}{%- endif %}
{%- if @HAS_TOOLS@ and message.role == "tool" %}
{%- set said.text = "<tool_response>\\n" + said.text + "\\n</tool_response>" %}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set given = call.function.arguments %}
{%- set said.text = said.text + ("\\n" if said.text else "") + '<tool_call>\\n{"name": '
    + (call.function.name | tojson) + ', "arguments": '
    + (given if given is string else given | tojson) + '}\\n</tool_call>' %}{%- endfor %}
{%- set known.text = known.text + joiner + before[message.role] + joiner + said.text + joiner
    + after.get(message.role, "") %}
{%- endfor %}
{{- known.text }}
{%- if add_generation_prompt %}{{- joiner + before.assistant }}{%- endif %}"""


def exported_template(template: Template, tokenizer: Any) -> str | None:
    """Return the template in Jinja, tried on the tokenizer; None if no text gives its tokens.

    A policy that uses the tokenizer's own template needs none.
    """
    if not isinstance(template, RoleTemplate):
        return None
    for joiner in JOINERS:
        text = _text_of(template, joiner)
        if all(_same(template, tokenizer, text, said) for said in _conversations(template)):
            return text
    return None


def _text_of(template: RoleTemplate, joiner: str) -> str:
    spec: Mapping[str, Any] = template.spec
    preface, closing = HERMES.format(tools=PLACE).split(PLACE)
    after = {role: spec["after"].get(role, "") for role in spec["before"]}
    values = {
        "BEFORE": spec["before"],
        "AFTER": after | {"assistant": spec["end"] + joiner + spec["glue"]},
        "JOINER": joiner,
        "BOS": spec["bos"],
        "PREFACE": preface,
        "CLOSING": closing,
        "HAS_TOOLS": template.tool_format != NONE,
    }
    text = BODY
    for name, value in values.items():
        text = text.replace(f"@{name}@", json.dumps(value))
    return text


def _conversations(template: RoleTemplate) -> Iterator[list[Message]]:
    question, answer = Message("user", QUESTION), Message("assistant", ANSWER)
    yield [question]
    yield [question, answer, question]
    if "system" in template.spec["before"]:
        yield [Message("system", QUESTION), question]


def _same(template: RoleTemplate, tokenizer: Any, text: str, messages: Sequence[Message]) -> bool:
    said = [{"role": message.role, "content": message.content} for message in messages]
    written = tokenizer.apply_chat_template(
        said, chat_template=text, add_generation_prompt=True, tokenize=False
    )
    try:
        ids = tokenizer.encode(written, add_special_tokens=False)
    except Exception:  # the Rust tokenizers raise nothing narrower for a text without tokens
        return False
    return bool(ids == template.render(messages, first=True, ended=False))
