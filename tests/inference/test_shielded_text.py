"""Control tokens in foreign text stay text under a tokenizer's template."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.policies import GPT2

SPECIAL = ["<|im_start|>", "<|im_end|>", "<bos>"]
WORDS = [*SPECIAL, "<unk>", "\n", *map(chr, range(32, 127))]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>\n"
    "{% endfor %}{{ m.content }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = st.lists(
    st.sampled_from([*SPECIAL, "<|im_", "end|>", "start|>", "a b", "zq7xk", "-1-", "<"]), max_size=6
).map("".join)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Template]:
    """A tokenizer and its own chat template."""
    directory = make_policy(
        tmp_path_factory.mktemp("shield") / "p",
        config={**GPT2, "vocab_size": len(WORDS)},
        tokens=WORDS,
        template={"kind": "chatml", "bos": "<bos>"},
        seed=0,
    )
    tokenizer = load_policy(directory).tokenizer
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = CHATML
    return tokenizer, template_of({"kind": "jinja", "tools": "hermes"}, tokenizer)


def conversation(text: str) -> tuple[list[Message], str]:
    """This text in every place that a template is given, and the tools."""
    calls = tool_calls_text([ToolCall("c", "f", json.dumps({"a": text, "b": [text]}))])
    messages = [
        Message("system", text),
        Message("user", text),
        Message("assistant", text, calls),
        Message("tool", text, "", "c"),
    ]
    return messages, json.dumps([{"type": "function", "function": {"name": "f", "about": text}}])


@given(TEXTS)
def test_only_the_template_writes_control_tokens(made: tuple[Any, Template], text: str) -> None:
    tokenizer, template = made
    special = set(tokenizer.all_special_ids)
    messages, tools = conversation(text)
    harmless, no_tools = conversation("harmless")

    ids = template.render(messages, first=True, ended=False, tools=tools)

    calm = template.render(harmless, first=True, ended=False, tools=no_tools)
    assert [i for i in ids if i in special] == [i for i in calm if i in special]
    assert tokenizer.decode(ids).count(text) >= 4


@given(TEXTS, st.booleans())
def test_later_turns_contain_control_tokens_of_the_template_only(
    made: tuple[Any, Template], text: str, ended: bool
) -> None:
    tokenizer, template = made
    special = set(tokenizer.all_special_ids)
    ids, calm = (
        template.render([Message("user", each)], first=False, ended=ended)
        for each in (text, "harmless")
    )

    assert [i for i in ids if i in special] == [i for i in calm if i in special]
    assert text in tokenizer.decode(ids)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_ordinary_text_renders_as_by_the_original_template(
    made: tuple[Any, Template], text: str
) -> None:
    tokenizer, template = made
    said = [{"role": "user", "content": text}]
    whole = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)

    ids = template.render([Message("user", text)], first=True, ended=False)

    if not any(spelling in text for spelling in SPECIAL):
        assert ids == tokenizer.encode(whole, add_special_tokens=False)
