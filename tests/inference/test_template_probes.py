"""Unusual but valid chat templates are served in their own form, or refused."""

from typing import Any

import pytest

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.inference.template_probes import SHORT_ID, short_id
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.policies import GPT2

WORDS = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
TOOLS = '[{"type": "function", "function": {"name": "f", "parameters": {}}}]'
CALL = (
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>"
)
XML = (
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
NINE = (
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids of calls need nine characters') }}{% endif %}{% endfor %}"
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids of results need nine characters') }}{% endif %}"
)
AFTER_CALLS = (
    "{% if m.role == 'tool' and messages[loop.index0 - 1].role != 'tool' "
    "and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a result must follow calls') }}{% endif %}"
)
NO_SYSTEM = (
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
)


def text_of(check: str = "", call: str = CALL, late: bool = False) -> str:
    tools = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    return (
        ("" if late else tools)
        + "{% for m in messages %}"
        + check
        + "<|im_start|>{{ m.role }}\n{{ m.content }}"
        + "{% for c in m.tool_calls or [] %}\n"
        + call
        + "{% endfor %}<|im_end|>\n{% endfor %}"
        + (tools if late else "")
        + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = make_policy(
        tmp_path_factory.mktemp("probes") / "p",
        config={**GPT2, "vocab_size": len(WORDS)},
        tokens=WORDS,
        template={"kind": "chatml"},
        seed=0,
    )
    tokenizer = load_policy(directory).tokenizer
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


def made(tokenizer: Any, text: str, tools: str = "hermes") -> Template:
    tokenizer.chat_template = text
    return template_of({"kind": "jinja", "tools": tools}, tokenizer)


@pytest.mark.parametrize(
    "check", ["", NINE, AFTER_CALLS, NO_SYSTEM, NINE + AFTER_CALLS + NO_SYSTEM]
)
def test_turns_with_tools_render_as_the_whole_conversation_does(tokenizer: Any, check: str) -> None:
    template = made(tokenizer, text_of(check))
    opening = [Message("system", "Be brief."), Message("user", "Go.")]
    calls = tool_calls_text([ToolCall("call_12345678901234567890_0", "f", '{"a": 1}')])
    said = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    result = Message("tool", "found", "", "call_12345678901234567890_0")

    ids = template.render(opening, first=True, ended=False, tools=TOOLS)
    ids += tokenizer.encode(said, add_special_tokens=False) + list(template.end_ids)
    ids += template.render([result], first=False, ended=True, tools=TOOLS)

    whole = [*opening, Message("assistant", "", calls), result]
    assert ids == template.render(whole, first=True, ended=False, tools=TOOLS)


def test_a_system_message_joins_the_first_question_without_a_system_role(
    tokenizer: Any,
) -> None:
    template = made(tokenizer, text_of(NO_SYSTEM), "none")

    ids = template.render(
        [Message("system", "Be brief."), Message("user", "Go.")], first=True, ended=False
    )

    assert "<|im_start|>user\nBe brief.\n\nGo.<|im_end|>" in tokenizer.decode(ids)


def test_a_declared_format_that_the_template_does_not_write_is_refused(
    tokenizer: Any,
) -> None:
    with pytest.raises(Refused, match=r"read as 'hermes', but it writes one as .*<function="):
        made(tokenizer, text_of(call=XML))
    assert made(tokenizer, text_of(call=XML), "none").tool_format == "none"


def test_a_template_with_tools_behind_the_messages_is_refused(
    tokenizer: Any,
) -> None:
    with pytest.raises(Refused, match="looks back"):
        made(tokenizer, text_of(late=True))


def test_a_template_with_tools_in_the_last_question_is_refused(
    tokenizer: Any,
) -> None:
    tools = "{% if tools and m.role == 'user' and loop.last %}{{ tools | tojson }}\n{% endif %}"

    with pytest.raises(Refused, match="looks back"):
        made(tokenizer, text_of().replace("{{ m.content }}", tools + "{{ m.content }}"))


def test_a_template_without_tool_results_is_refused_with_its_reason(
    tokenizer: Any,
) -> None:
    check = "{% if m.role == 'tool' %}{{ raise_exception('no results here') }}{% endif %}"

    with pytest.raises(Refused, match="no results here"):
        made(tokenizer, text_of(check))


def test_short_ids_are_alphanumeric_and_distinct() -> None:
    ids = {short_id(f"call_{n}") for n in range(1000)}

    assert len(ids) == 1000
    assert all(len(each) == SHORT_ID and each.isalnum() for each in ids)
