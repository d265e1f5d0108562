"""An exported chat template renders the tokens that the policy was trained with."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.chat import template_of
from rollcall.inference.exported_template import exported_template
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.policies import CHARACTERS, GPT2, WORDS
from tests.support.tiers import cases, examples

CONTROL = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
SPECS = {
    "chatml": {"kind": "chatml"},
    "tools": {"kind": "chatml", "tools": "hermes"},
    "characters": CHARACTERS,
    "words": WORDS,
}
TOOLS = '[{"type": "function", "function": {"name": "f", "parameters": {}}}]'


@pytest.fixture(scope="module", params=cases(SPECS))
def exported(
    request: pytest.FixtureRequest, lake: Path, writer: Path, tmp_path_factory: Any
) -> tuple[str, Any, Any, str]:
    """The name of a spec, its tokenizer, its template, and that in Jinja."""
    chat = make_policy(
        tmp_path_factory.mktemp("exported") / "chat",
        config={**GPT2, "vocab_size": len(CONTROL)},
        tokens=CONTROL,
        template={"kind": "chatml"},
        seed=0,
    )
    name = request.param
    directory = {"words": lake, "characters": writer}.get(name, chat)
    tokenizer = load_policy(directory).tokenizer
    template = template_of(SPECS[name], tokenizer)
    text = exported_template(template, tokenizer)
    assert text is not None
    return name, tokenizer, template, text


def rendered(tokenizer: Any, text: str, messages: list[dict[str, Any]], tools: Any = None) -> Any:
    written = tokenizer.apply_chat_template(
        messages, tools, chat_template=text, add_generation_prompt=True, tokenize=False
    )
    return tokenizer.encode(written, add_special_tokens=False)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(["s1", "L", "R", "no"]), min_size=1), min_size=1))
def test_a_conversation_renders_to_the_training_tokens(
    exported: tuple[str, Any, Any, str], turns: list[list[str]]
) -> None:
    _, tokenizer, template, text = exported
    roles = ["user" if at % 2 == 0 else "assistant" for at in range(len(turns))]
    contents = [" ".join(words) for words in turns]
    said = [Message(role, content) for role, content in zip(roles, contents, strict=True)]
    plain = [{"role": message.role, "content": message.content} for message in said]

    assert rendered(tokenizer, text, plain) == template.render(said, first=True, ended=False)


@pytest.mark.parametrize("exported", ["tools"], indirect=True)
def test_tools_calls_and_results_render_to_the_training_tokens(
    exported: tuple[str, Any, Any, str],
) -> None:
    _, tokenizer, template, text = exported
    import json

    calls = tool_calls_text([ToolCall("c", "f", '{"a":1}')])
    said = [
        Message("system", "Be brief."),
        Message("user", "Go."),
        Message("assistant", "", calls),
        Message("tool", "found", "", "c"),
    ]
    plain: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in said]
    plain[2]["tool_calls"] = json.loads(calls)

    for begin in (0, 1):
        wanted = template.render(said[begin:], first=True, ended=False, tools=TOOLS)
        assert rendered(tokenizer, text, plain[begin:], json.loads(TOOLS)) == wanted
