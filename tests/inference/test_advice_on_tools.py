"""A call with tools and a template without a tool format gets advice that works."""

import json
from typing import Any

import pytest

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import Message
from tests.support.policies import GPT2, WORDS

TOKENS = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
SHORT = [each for each in TOKENS if each != "_"]
"""Without a letter that the marks of a format need."""
TOOLS = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {}}}])
TOLD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
LATE = "{% if tools %}<|im_start|>user\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
HERMES = (  # written so that it does not tell its format by itself
    "\n<tool{{ '_call>' }}\n"
    '{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>"
)
XML = "\n<tool_call>\n<function={{ c.function.name }}>\n</function>\n</tool_call>"
PARTS = {"user": "U", "assistant": "A", "system": "S", "tool": "T"}
ALL = {"kind": "roles", "before": PARTS, "end": "<|im_end|>"}


def text_of(told: str = "", call: str = "", late: str = "", check: str = "") -> str:
    return (
        f"{told}{{% for m in messages %}}{check}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}"
        f"{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}<|im_end|>\n{{% endfor %}}{late}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


NO_RESULTS = "{% if m.role == 'tool' %}{{ raise_exception('no results here') }}{% endif %}"
NO_LIST = TOLD.replace("{{ tools | tojson }}", "{{ raise_exception('no tools here') }}")
CHATS = {
    "nothing of tools": text_of(),
    "hermes, not taught": text_of(TOLD, HERMES),
    "calls alone": text_of(call=HERMES),
    "xml": text_of(TOLD, XML),
    "late": text_of(call=HERMES, late=LATE),
    "no results": text_of(TOLD, HERMES, check=NO_RESULTS),
    "no tools": text_of(NO_LIST, HERMES),
}
SPECS: dict[str, dict[str, Any]] = {
    "chatml": {"kind": "chatml"},
    "roles": ALL,
    "roles without tool": ALL | {"before": {k: v for k, v in PARTS.items() if k != "tool"}},
    "words": {"kind": "words", "bos": "\n", "turn": "<|im_start|>"},
    **{name: {"kind": "jinja", "chat": text} for name, text in CHATS.items()},
}


@pytest.fixture(scope="module", params=["can write the marks", "cannot"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokens = TOKENS if request.param == "can write the marks" else SHORT
    directory = make_policy(
        tmp_path_factory.mktemp("advice") / "p",
        config={**GPT2, "vocab_size": len(tokens)},
        tokens=tokens,
        template={"kind": "chatml"},
        seed=0,
    )
    tokenizer = load_policy(directory).tokenizer
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


def made(tokenizer: Any, spec: dict[str, Any]) -> Template:
    fields = dict(spec)
    tokenizer.chat_template = fields.pop("chat", None)
    return template_of(fields, tokenizer)


def rendered(template: Template, tokenizer: Any) -> str:
    ids = template.render([Message("user", "Hi")], first=True, ended=False, tools=TOOLS)
    return str(tokenizer.decode(ids))


@pytest.mark.parametrize("name", SPECS)
def test_the_error_advises_a_tool_format_only_if_it_works(tokenizer: Any, name: str) -> None:
    spec = SPECS[name]
    with pytest.raises(WorkFailed) as caught:
        rendered(made(tokenizer, spec), tokenizer)
    told = str(caught.value)
    by_itself = 'tools; declare "tools": "hermes" in' in told
    by_roles = 'declare a template of kind roles with "tools": "hermes" in' in told

    assert caught.value.code == "not_renderable"
    assert told.endswith("call it without tools")
    assert "\n" not in told
    assert not (by_itself and by_roles)
    if by_itself:
        assert '"f"' in rendered(made(tokenizer, spec | {"tools": "hermes"}), tokenizer)
    else:
        assert "(" in told  # the reason
        with pytest.raises((Refused, AssertionError)):
            assert '"f"' in rendered(made(tokenizer, spec | {"tools": "hermes"}), tokenizer)
    if by_roles:
        assert '"f"' in rendered(made(tokenizer, ALL | {"tools": "hermes"}), tokenizer)
    elif not by_itself and name not in ("xml", "late", "no results"):  # taught in their own way
        with pytest.raises(Refused):
            made(tokenizer, ALL | {"tools": "hermes"})


def test_each_kind_of_advice_is_given(tokenizer: Any) -> None:
    told = {}
    for name, spec in SPECS.items():
        with pytest.raises(WorkFailed) as caught:
            rendered(made(tokenizer, spec), tokenizer)
        told[name] = str(caught.value)

    if tokenizer.vocab_size < len(TOKENS):
        reasons = ("writes '<tool_call>' as", "takes no tools", "no `before` for")
        assert all(any(why in each for why in reasons) for each in told.values())
        assert not any("declare" in each.replace("can declare none", "") for each in told.values())
        return
    assert "it has no `before` for tool" in told["roles without tool"]
    assert "kind words takes no tools" in told["words"]
    assert "tells nothing of tools" in told["nothing of tools"]
    assert "it writes one as" in told["xml"]
    assert "kind roles" not in told["xml"].rpartition(")")[0].partition("(")[0]


def test_a_word_level_policy_gets_no_advice_to_declare_a_format(lake: Any) -> None:
    policy = load_policy(lake)
    with pytest.raises(WorkFailed, match=r"and can declare none \(.*kind words takes no tools"):
        policy.template.render([Message("user", "L")], first=True, ended=False, tools=TOOLS)
    assert WORDS["kind"] == "words"
