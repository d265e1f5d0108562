"""Text of users, tools, files and system messages never becomes a control token."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import PRESETS, load_policy, make_policy
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.policies import CHARACTERS, GPT2, WORDS

SPECIAL = ["<|im_start|>", "<|im_end|>", "<bos>", "[INST]"]
OTHER = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<h1>",
    "Überwort",
]
SPACES = ["    ", "\t\t"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROLES = {"user": "U: ", "system": "S: ", "tool": "T: ", "assistant": "<|im_start|>"}
KINDS: dict[str, dict[str, Any]] = {
    "chatml": {"kind": "chatml", "bos": "<bos>"},
    "chatml with tools": {"kind": "chatml", "tools": "hermes"},
    "roles": {"kind": "roles", "before": ROLES, "end": "<|im_end|>"},
    "words": {"kind": "words", "bos": "<bos>", "turn": "[INST]"},
    "jinja": {"kind": "jinja", "tools": "none"},
    "jinja with tools": {"kind": "jinja", "tools": "hermes"},
}


def characters() -> Tokenizer:
    """One token a character."""
    known = {letter: at for at, letter in enumerate([*map(chr, range(128)), "Ü", "ü"])}
    core = Tokenizer(models.WordLevel(known, unk_token="\x00"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return core


def bytes_merged() -> Tokenizer:
    """Byte-level BPE, of which the vocabulary spells control tokens too, as some do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "th", "in", "im", "<|", "|>", "ink", "think", "</", *OTHER[:4]]
    merges = [
        ("t", "h"),
        ("i", "n"),
        ("i", "m"),
        ("<", "|"),
        ("|", ">"),
        ("in", "k"),
        ("th", "ink"),
        ("<", "/"),
    ]
    known = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.BPE(known, merges, ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return core


def folded() -> Tokenizer:
    """One that reads other spellings as these: wide letters and capitals."""
    core = characters()
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return core


def pieces() -> Tokenizer:
    """Unigram, whose vocabulary holds control tokens as pieces."""
    scored = [
        ("<unk>", 0.0),
        *((chr(code), -5.0) for code in range(9, 127)),
        ("▁", -5.0),
        ("Ü", -5.0),
        *((spelling, 0.0) for spelling in (*SPECIAL, *OTHER)),
    ]
    core = Tokenizer(models.Unigram(scored, unk_id=0))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    return core


CORES: dict[str, Callable[[], Tokenizer]] = {
    "characters": characters,
    "bytes": bytes_merged,
    "folded": folded,
    "pieces": pieces,
}


@dataclass
class Made:
    """A tokenizer, its templates by kind, and its control tokens."""

    tokenizer: Any
    templates: dict[str, Template]
    control: frozenset[int]


def made(core: Tokenizer) -> Made:
    core.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    others = [AddedToken(each, special=False, normalized=True) for each in (*OTHER, *SPACES)]
    core.add_tokens(others)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    templates = {name: template_of(spec, tokenizer) for name, spec in KINDS.items()}
    ids = tokenizer.convert_tokens_to_ids([*SPECIAL, *OTHER])
    return Made(tokenizer, templates, frozenset(ids))


@pytest.fixture(scope="module")
def by_name() -> dict[str, Made]:
    return {name: made(core()) for name, core in CORES.items()}


TEXTS = st.lists(
    st.sampled_from(
        [
            *SPECIAL,
            *OTHER,
            *SPACES,
            "<|im_",
            "end|>",
            "</",
            "think>",
            "<TOOL_CALL>",
            "\N{FULLWIDTH LESS-THAN SIGN}think>",
            " a b",
            "\n",
            "zq7xk",
            "-0-",
            "<",
        ]
    ),
    max_size=5,
).map("".join)


def conversation(text: str, *, tools: bool) -> tuple[list[Message], str]:
    """This text in every place that others write."""
    messages = [Message("system", text), Message("user", text), Message("user", f"a{text}b")]
    if not tools:
        return messages, ""
    calls = tool_calls_text([ToolCall("c", "f", "{}")])
    results = [Message("assistant", "Go.", calls), Message("tool", text, "", "c")]
    offered = [{"type": "function", "function": {"name": "f", "about": [text, {text: text}]}}]
    return [*messages, *results], json.dumps(offered)


def control_in(one: Made, ids: list[int]) -> list[int]:
    return [each for each in ids if each in one.control]


@given(st.sampled_from(list(CORES)), st.sampled_from(list(KINDS)), TEXTS)
def test_only_the_template_writes_control_tokens(
    by_name: dict[str, Made], core: str, kind: str, text: str
) -> None:
    one = by_name[core]
    template, tools = one.templates[kind], "with" in kind
    messages, offered = conversation(text, tools=tools)
    calm, nothing = conversation("x", tools=tools)

    ids = template.render(messages, first=True, ended=False, tools=offered)
    later = template.render([Message("user", text)], first=False, ended=True)

    wanted = template.render(calm, first=True, ended=False, tools=nothing)
    assert control_in(one, ids) == control_in(one, wanted)
    quiet = template.render([Message("user", "x")], first=False, ended=True)
    assert control_in(one, later) == control_in(one, quiet)
    if core == "bytes" or (core == "characters" and text.isascii()):
        assert one.tokenizer.decode(ids).count(text) >= 3
        assert text in one.tokenizer.decode(later)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("core", CORES)
def test_added_tokens_other_than_white_space_stay_text(
    by_name: dict[str, Made], core: str, kind: str
) -> None:
    one = by_name[core]
    template = one.templates[kind]
    quiet = template.render([Message("user", "x")], first=True, ended=False)

    for spelling in (*SPECIAL, *OTHER):
        ids = template.render([Message("user", spelling)], first=True, ended=False)
        assert control_in(one, ids) == control_in(one, quiet), spelling
    for spelling in SPACES:
        ids = template.render([Message("user", spelling)], first=True, ended=False)
        assert one.tokenizer.convert_tokens_to_ids(spelling) in ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("core", CORES)
def test_answers_keep_control_tokens_except_special_ones(
    by_name: dict[str, Made], core: str, kind: str
) -> None:
    one = by_name[core]
    special = set(one.tokenizer.convert_tokens_to_ids(SPECIAL))
    said = "<think>so</think>yes<|im_end|>"
    asked = Message("user", "x")

    ids = one.templates[kind].render(
        [asked, Message("assistant", said), asked], first=True, ended=False
    )
    calm = one.templates[kind].render(
        [asked, Message("assistant", "yes"), asked], first=True, ended=False
    )

    told = [each for each in control_in(one, ids) if each not in special]
    assert told == one.tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert [i for i in ids if i in special] == [i for i in calm if i in special]


@pytest.mark.parametrize("name", ["lake", "characters", "chatml"])
def test_marks_of_a_made_policy_cannot_be_written_as_text(tmp_path: Any, name: str) -> None:
    tokens = PRESETS.get(name, [*SPECIAL[:2], "<unk>", "\n", *map(chr, range(32, 127))])
    spec = {"lake": WORDS, "characters": CHARACTERS, "chatml": {"kind": "chatml"}}[name]
    config = {**GPT2, "vocab_size": len(tokens), "bos_token_id": None, "eos_token_id": None}
    policy = load_policy(
        make_policy(tmp_path / name, config=config, tokens=list(tokens), template=spec, seed=0)
    )
    harmless = policy.template.render([Message("user", "L")], first=True, ended=False)
    marks = [each for each in tokens if each.startswith("<") and len(each) > 1 and each != "<unk>"]
    ids = set(policy.tokenizer.convert_tokens_to_ids(marks))

    for mark in marks:
        if name == "lake":  # its vocabulary has no other tokens for the text
            with pytest.raises(WorkFailed, match=f"spells the control token '{mark}'"):
                policy.template.render([Message("user", mark)], first=True, ended=False)
            continue
        found = policy.template.render([Message("user", mark)], first=True, ended=False)
        assert [i for i in found if i in ids] == [i for i in harmless if i in ids]
