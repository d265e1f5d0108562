"""A template renders suffixes: turn by turn and at once give the same tokens."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.chat import Template, template_of
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import Message
from tests.support.policies import CHARACTERS, GPT2, WORDS

CONTROL = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content if loop.last or '</think>' not in m.content else "
    "m.content.split('</think>')[1] }}",
)
TRIMS = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")
COUNTS = CHATML.replace("{{ m.role }}", "{{ m.role }} {{ messages | length }}")
# Without `<`: control tokens spelt out have a test of their own.
PLAIN_TEXT = st.text(st.sampled_from([chr(code) for code in range(32, 60)]), max_size=20)


@pytest.fixture(scope="module")
def tokenizers(lake: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    chat = make_policy(
        tmp_path_factory.mktemp("policies") / "chat",
        config={**GPT2, "vocab_size": len(CONTROL)},
        tokens=CONTROL,
        template={"kind": "chatml"},
        seed=0,
    )
    found = {"words": lake, "characters": writer, "chatml": chat, "jinja": chat}
    return {name: load_policy(directory).tokenizer for name, directory in found.items()}


def jinja(tokenizer: object, text: str) -> Template:
    tokenizer.chat_template = text
    tokenizer.eos_token = "<|im_end|>"
    return template_of({"kind": "jinja"}, tokenizer)


@pytest.fixture(params=["words", "characters", "chatml", "jinja"])
def named(request: pytest.FixtureRequest, tokenizers: dict) -> tuple[str, Template, object]:
    name, tokenizer = request.param, tokenizers[request.param]
    specs = {"words": WORDS, "characters": CHARACTERS, "chatml": {"kind": "chatml"}}
    if name == "jinja":
        return name, jinja(tokenizer, CHATML), tokenizer
    return name, template_of(specs[name], tokenizer), tokenizer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(PLAIN_TEXT, PLAIN_TEXT, st.booleans()), min_size=1, max_size=4),
    data=st.data(),
)
def test_rendering_turn_by_turn_gives_the_tokens_of_the_whole(
    named: tuple[str, Template, object], texts: list[tuple[str, str, bool]], data: st.DataObject
) -> None:
    name, template, tokenizer = named
    if name == "words":
        word = st.sampled_from(["s1", "no", "L", "D", "s15"])
        texts = [(data.draw(word), data.draw(word), ended) for _, _, ended in texts]

    # Given a conversation in which each answer ends by itself or is cut
    known: list[int] = []
    whole: list[Message] = []
    for asked, answered, ended in texts:
        # When each turn renders only its own message
        ends = bool(known) and known[-1] in template.end_ids
        known += template.render([Message("user", asked)], first=not known, ended=ends)
        whole += [Message("user", asked), Message("assistant", answered)]
        known += tokenizer.encode(answered, add_special_tokens=False)
        known += template.end_ids if ended else ()
    ends = known[-1] in template.end_ids
    known += template.render([Message("user", "s1")], first=False, ended=ends)
    whole.append(Message("user", "s1"))

    # Then the tokens are those of the whole conversation
    assert known == template.render(whole, first=True, ended=False)


def test_the_lakes_prompt_is_three_tokens(tokenizers: dict) -> None:
    template = template_of(WORDS, tokenizers["words"])

    assert template.render([Message("user", "s7")], first=True, ended=False) == [0, 14, 1]
    assert template.render([Message("user", "s3")], first=False, ended=False) == [10, 1]
    assert template.render([Message("user", "no s7")], first=False, ended=False) == [6, 14, 1]


def test_a_character_prompt_starts_with_bos_and_ends_with_the_turn(tokenizers: dict) -> None:
    template = template_of(CHARACTERS, tokenizers["characters"])

    ids = template.render([Message("user", "2+2?")], first=True, ended=False)

    assert tokenizers["characters"].decode(ids) == "<bos>2+2?<a>"
    assert (ids[0], ids[-1]) == (0, 1)


def test_control_tokens_in_a_message_stay_plain_text(tokenizers: dict) -> None:
    template = template_of({"kind": "chatml"}, tokenizers["chatml"])

    ids = template.render([Message("user", "<|im_end|>")], first=True, ended=False)

    assert ids.count(1) == 1


@pytest.mark.parametrize("text", [FORGETS, TRIMS, COUNTS], ids=["forgets", "trims", "counts"])
def test_a_template_that_is_not_prefix_stable_is_refused(tokenizers: dict, text: str) -> None:
    with pytest.raises(Refused, match=r"looks back|not prefix-stable"):
        jinja(tokenizers["jinja"], text)


def test_a_tokenizer_without_a_chat_template_is_refused(tokenizers: dict) -> None:
    with pytest.raises(Refused, match="no chat template"):
        template_of({"kind": "jinja"}, tokenizers["words"])


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kind": "nonsense"},
        {"kind": "words"},
        {"kind": "chatml", "boss": "x"},
        {"kind": "roles", "before": {"user": ""}},
    ],
)
def test_an_invalid_template_spec_is_refused(tokenizers: dict, spec: dict) -> None:
    with pytest.raises(Refused, match="template"):
        template_of(spec, tokenizers["chatml"])


def test_unrenderable_messages_fail_the_call(tokenizers: dict) -> None:
    words = template_of(WORDS, tokenizers["words"])
    unknown = [
        ([Message("user", "s99")], ""),
        ([Message("nobody", "s1")], ""),
        ([Message("assistant", "", tool_calls="[{}]")], ""),
        ([Message("user", "s1")], "[{}]"),
    ]

    for messages, tools in unknown:
        with pytest.raises(WorkFailed) as caught:
            words.render(messages, first=True, ended=False, tools=tools)
        assert caught.value.code == "not_renderable"


def test_templates_that_render_differently_have_different_digests(tokenizers: dict) -> None:
    tokenizer = tokenizers["chatml"]
    made = [
        template_of({"kind": "chatml"}, tokenizer),
        template_of({"kind": "chatml", "bos": "\n"}, tokenizer),
        template_of({"kind": "words", "bos": "\n", "turn": "<|im_start|>"}, tokenizer),
        jinja(tokenizers["jinja"], CHATML),
    ]

    assert len({template.digest for template in made}) == len(made)
    assert made[0].digest == template_of({"kind": "chatml"}, tokenizer).digest
