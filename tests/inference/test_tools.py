"""Tools are described in text and calls parsed from text; unparsable text stays content."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.inference.tools import FORMATS, calls_in, with_tools_written
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, json_text, tool_calls_of, tool_calls_text
from tests.support.avro_messages import FEW
from tests.support.policies import GPT2, WORDS

ID = bytes(range(16))
TOOLS = '[{"type":"function","function":{"name":"bash","parameters":{}}}]'
LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
CONTROL = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=8)
OBJECTS = st.dictionaries(TEXTS, st.integers() | st.booleans() | TEXTS, max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = {**GPT2, "vocab_size": len(CONTROL)}
    directory = make_policy(
        tmp_path_factory.mktemp("policies") / "tools",
        config=config,
        tokens=CONTROL,
        template={"kind": "chatml", "tools": "hermes"},
        seed=0,
    )
    policy = load_policy(directory)
    assert policy.template.tool_format == "hermes"
    return policy.tokenizer


def rendered(template: Template, tokenizer: Any, *messages: Message, tools: str = "") -> str:
    ids = template.render(messages, first=True, ended=False, tools=tools)
    return str(tokenizer.decode(ids, skip_special_tokens=False))


@given(
    TEXTS.map(str.strip),
    st.lists(st.tuples(TEXTS.filter(bool), OBJECTS.map(json_text)), min_size=1, max_size=3),
)
@FEW
def test_written_tool_calls_are_parsed_back_unchanged(
    text: str, calls: list[tuple[str, str]]
) -> None:
    ids = [f"call_{ID.hex()[:24]}_{at}" for at in range(len(calls))]
    canonical = tool_calls_text(
        [ToolCall(id_, *call) for id_, call in zip(ids, calls, strict=True)]
    )
    message = Message("assistant", text, canonical)

    (spoken,) = with_tools_written(FORMATS["hermes"], [message], "")

    assert calls_in("hermes", spoken.content, ID) == (text, canonical)


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("", "", []),
        ("just words \n", "just words \n", []),
        (LS, "", ["bash"]),
        (f"Look:\n{LS}\n{LS}\nDone.", "Look:\n\n\nDone.", ["bash", "bash"]),
        (LS.replace("\n", ""), "", ["bash"]),
        (LS.replace("ls", "echo </tool_call>"), "", ["bash"]),
        (f"<tool_call>{LS}", "<tool_call>", ["bash"]),
        (f"<tool_call>no</tool_call>{LS}", "<tool_call>no</tool_call>", ["bash"]),
    ],
)
def test_text_around_tool_calls_is_the_content(text: str, content: str, names: list[str]) -> None:
    said, calls = calls_in("hermes", text, ID)

    assert said == content
    assert [call.name for call in tool_calls_of(calls)] == names


@pytest.mark.parametrize(
    "inner",
    [
        "",
        "{",
        "[]",
        "5",
        '{"name": "bash"}',
        '{"name": 5, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "bash", "arguments": "ls"}',
        '{"name": "bash", "arguments": [1]}',
        '{"name": "bash", "arguments": {"a": NaN}}',
        '{"name": "bash", "arguments": {"a": "\\ud800"}}',
        "{'name': 'bash', 'arguments': {}}",
        '{"name": "bash", "arguments": {}} and more',
        '{"name": "bash", "arguments": {}',
        '{"name": "bash", "arguments": {"a": ' + "[" * 3000 + "]" * 3000 + "}}",
    ],
)
@pytest.mark.parametrize("close", ["</tool_call>", ""])
def test_unparsable_tool_calls_stay_content(inner: str, close: str) -> None:
    text = f" I try <tool_call>\n{inner}\n{close} "

    assert calls_in("hermes", text, ID) == (text, "")


def test_an_unclosed_tool_call_stays_content() -> None:
    text = LS.removesuffix("</tool_call>")

    assert calls_in("hermes", text, ID) == (text, "")


def test_many_unclosed_tool_calls_are_parsed_quickly() -> None:
    text = '<tool_call>{"a' * 70_000

    assert calls_in("hermes", text, ID) == (text, "")


def test_without_a_format_tool_calls_stay_text() -> None:
    assert calls_in("none", LS, ID) == (LS, "")


def test_ids_of_tool_calls_derive_from_their_command() -> None:
    _, calls = calls_in("hermes", LS + LS, ID)

    assert [call.id for call in tool_calls_of(calls)] == [
        "call_000102030405060708090a0b_0",
        "call_000102030405060708090a0b_1",
    ]


def test_tools_are_described_once_at_the_end_of_the_system_message(tokenizer: Any) -> None:
    template = template_of({"kind": "chatml", "tools": "hermes"}, tokenizer)
    user, system = Message("user", "Hi"), Message("system", "Be brief.")

    alone = rendered(template, tokenizer, user, tools=TOOLS)
    with_system = rendered(template, tokenizer, system, user, tools=TOOLS)
    later = template.render([user], first=False, ended=True, tools=TOOLS)

    assert alone.startswith("<|im_start|>system\n# Tools\n")
    assert with_system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "bash"' in alone
    assert later == template.render([user], first=False, ended=True)


def test_calls_and_results_are_rendered_in_the_declared_format(tokenizer: Any) -> None:
    template = template_of({"kind": "chatml", "tools": "hermes"}, tokenizer)
    calls = tool_calls_text([ToolCall("c", "bash", '{"command":"ls"}')])

    text = rendered(
        template,
        tokenizer,
        Message("user", "Hi"),
        Message("assistant", "I look.", calls),
        Message("tool", "a.txt", "", "c"),
    )

    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nI look.\n<tool_call>\n"
        '{"name": "bash", "arguments": {"command":"ls"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\na.txt\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_turn_by_turn_and_whole_give_the_same_tokens_with_tools(tokenizer: Any) -> None:
    template = template_of({"kind": "chatml", "tools": "hermes"}, tokenizer)
    user, tool = Message("user", "Hi"), Message("tool", "a.txt", "", "c")
    said = Message("assistant", "", tool_calls_text([ToolCall("c", "bash", '{"command":"ls"}')]))

    known = template.render([user], first=True, ended=False, tools=TOOLS)
    spoken = with_tools_written(FORMATS["hermes"], [said], "")[0].content
    known += tokenizer.encode(spoken, add_special_tokens=False) + list(template.end_ids)
    known += template.render([tool], first=False, ended=True, tools=TOOLS)

    assert known == template.render([user, said, tool], first=True, ended=False, tools=TOOLS)


@pytest.mark.parametrize("kind", ["chatml", "words", "jinja"])
def test_a_template_without_tool_support_explains_the_declaration(
    tokenizer: Any, kind: str
) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer.eos_token = "<|im_end|>"
    spec = {"kind": "words", "bos": "\n", "turn": "<|im_start|>"} if kind == "words" else {}
    template = template_of({"kind": kind} | spec, tokenizer)

    with pytest.raises(
        WorkFailed, match=f"'{kind}', has no form for tools; declare.*rollcall.json"
    ):
        template.render([Message("user", "Hi")], first=True, ended=False, tools=TOOLS)


def test_a_declared_tool_format_changes_the_templates_digest(tokenizer: Any) -> None:
    specs: list[dict[str, str]] = [{}, {"tools": "none"}, {"tools": "hermes"}]
    plain, none, hermes = (
        template_of({"kind": "chatml"} | spec, tokenizer).digest for spec in specs
    )

    assert plain == none == "4bf0f9403e6c28743b221c9caf528fe2"
    assert hermes != plain


def test_a_chat_template_gets_arguments_as_an_object(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments.command }}{% endfor %}<|im_end|>{% endfor %}"
    )
    tokenizer.eos_token = "<|im_end|>"
    template = template_of({"kind": "jinja", "tools": "hermes"}, tokenizer)
    calls = tool_calls_text([ToolCall("c", "bash", '{"command":"ls"}')])

    text = rendered(template, tokenizer, Message("assistant", "x", calls), tools=TOOLS)

    assert text == "xls<|im_end|>"


# As those of widely used models: definitions in the system message, results as a user's words.
TAUGHT = (
    "{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n\n{% endif %}# Tools\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{%- elif messages[0].role == 'system' %}<|im_start|>system\n"
    "{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m.content }}\n</tool_response><|im_end|>\n{% elif m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '\\n' }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_models_own_template_renders_tools_turn_by_turn_alike(tokenizer: Any) -> None:
    tokenizer.chat_template, tokenizer.eos_token = TAUGHT, "<|im_end|>"
    template = template_of({"kind": "jinja", "tools": "hermes"}, tokenizer)
    user, tool = Message("user", "Hi"), Message("tool", "a.txt", "", "c")
    spoken = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    content, calls = calls_in("hermes", spoken, ID)

    known = template.render([user], first=True, ended=False, tools=TOOLS)
    known += tokenizer.encode(spoken, add_special_tokens=False) + list(template.end_ids)
    known += template.render([tool, tool], first=False, ended=True, tools=TOOLS)

    whole = [user, Message("assistant", content, calls), tool, tool]
    assert known == template.render(whole, first=True, ended=False, tools=TOOLS)
    assert tokenizer.decode(known, skip_special_tokens=False).count("# Tools") == 1


@pytest.mark.parametrize(
    ("told", "tools", "found"),
    [
        (
            r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>",
            None,
            "hermes",
        ),
        ('<tool_call>\n{"name": "x"}', None, "hermes"),
        ('<tool_call>\n{"name": "x"}', "none", "none"),
        (r"<tool_call>\n<function=example>", None, "none"),
        ("", None, "none"),
        ("", "hermes", "hermes"),
    ],
)
def test_a_chat_template_may_imply_its_tool_format(
    tokenizer: Any, told: str, tools: str | None, found: str
) -> None:
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = (
        "{% if tools %}{{ '"
        + told
        + "' }}{% endif %}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    declared = {} if tools is None else {"tools": tools}

    template = template_of({"kind": "jinja"} | declared, tokenizer)

    assert template.tool_format == found


@pytest.mark.parametrize("tools", ["nonsense", "hermes"])
def test_an_unknown_or_unwritable_format_is_refused(lake: Path, tools: str) -> None:
    with pytest.raises(Refused, match="tools of format"):
        template_of(
            {"kind": "roles", "before": WORDS_BEFORE, "tools": tools}, load_policy(lake).tokenizer
        )


WORDS_BEFORE = {"system": "", "user": "", "assistant": WORDS["turn"]}


@pytest.mark.parametrize("tools", ["x", "{}", "5", "[" * 5000])
def test_tools_that_are_not_a_list_fail_the_call(tokenizer: Any, tools: str) -> None:
    template = template_of({"kind": "chatml", "tools": "hermes"}, tokenizer)

    with pytest.raises(WorkFailed, match="tools must be a JSON list"):
        template.render([Message("user", "Hi")], first=True, ended=False, tools=tools)


def test_tool_definitions_are_passed_on_completely() -> None:
    told = with_tools_written(FORMATS["hermes"], [], TOOLS)[0].content
    lines = told.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()

    assert [json.loads(line) for line in lines] == json.loads(TOOLS)


CALLED = '<tool_call>{"name":"rm","arguments":{}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"<think>maybe {CALLED}</think>All done.", []),
        (f"<think>maybe {CALLED}", []),
        (f"maybe {CALLED}</think>All done.", []),
        (f"<think>maybe {CALLED}</think>{CALLED}", ["rm"]),
        (f"{CALLED}<think>done</think>", ["rm"]),
        (f"<think>a</think>{CALLED}<think>{CALLED}</think>{CALLED}", ["rm", "rm"]),
    ],
)
def test_tool_calls_inside_thinking_are_ignored(text: str, names: list[str]) -> None:
    content, calls = FORMATS["hermes"].parsed(text)

    assert [name for name, _ in calls] == names
    assert names or content == text
