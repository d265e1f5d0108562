"""A policy that is a function of text: its input, and how its output is used."""

import re
from dataclasses import replace

import pytest

from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import Speak, added_by, load_script, text_script
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Message, ModelCall
from rollcall.schemas.packed import pack_ids
from rollcall.schemas.tool_calls import tool_calls_of
from tests.support import scripted_models
from tests.support.policies import body, call, failure, tokens

TOOLS = '[{"type":"function","function":{"name":"bash"}}]'
CALLS = (
    '[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\\"command\\":\\"ls\\"}"}}'
    ',{"id":"call_2","type":"function","function":{"name":"bash","arguments":"not JSON"}}]'
)
FIRST = (Message("system", "Be brief."), Message("user", "What is there?"))
SPOKEN = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
What is there?<|im_end|>
<|im_start|>assistant
"""


def engine(speak: Speak) -> ScriptedEngine:
    return ScriptedEngine("policy", text_script(speak, "mine"), render=added_by)


def asked(*messages: Message, prefix: bytes = b"", tools: str = "", most: int = 999) -> ModelCall:
    plain = call(max_tokens=most)
    return replace(
        plain, messages=messages, tools=tools, prefix_ids=prefix, prefix_length=len(prefix) // 4
    )


def test_a_script_sees_the_whole_growing_conversation() -> None:
    seen: list[str] = []

    def speak(conversation: str) -> str:
        seen.append(conversation)
        return f"answer {len(seen)} ☃"

    one = engine(speak)
    first = body(one, asked(*FIRST))
    prefix = first.added_ids + first.token_ids
    news = (Message("tool", "notes.txt", tool_call_id="call_1"), Message("user", "", name="me"))
    second = body(one, asked(*news, prefix=prefix))
    again = body(one, asked(prefix=prefix + second.added_ids + second.token_ids))

    assert seen[0] == SPOKEN
    assert seen[1] == (
        f"{SPOKEN}answer 1 ☃<|im_end|>\n<|im_start|>tool\n"
        "<tool_response>\nnotes.txt\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )
    # An answer that was cut goes on where it was cut
    assert seen[2] == f"{seen[1]}answer 2 ☃"
    assert bytes(tokens(prefix + second.added_ids)).decode() == seen[1]
    assert (again.added_ids, again.text) == (b"", "answer 3 ☃")


def test_tools_are_described_once_and_calls_are_parsed() -> None:
    seen: list[str] = []

    def speak(conversation: str) -> str:
        seen.append(conversation)
        return (
            'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
        )

    answered = body(engine(speak), asked(*FIRST, tools=TOOLS))

    assert seen[0].startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "bash"' in seen[0]
    assert answered.text == "I look."
    (called,) = tool_calls_of(answered.tool_calls)
    assert (called.name, called.arguments) == ("bash", '{"command":"ls"}')
    assert bytes(tokens(answered.token_ids)).decode() == speak("")
    assert "# Tools" not in added_by(asked(*FIRST, prefix=b"\0\0\0\0", tools=TOOLS))


def test_tool_calls_of_earlier_turns_are_shown_unchanged() -> None:
    turn = Message("assistant", "I look.", tool_calls=CALLS)

    assert "assistant\nI look.\n<tool_call>\n" in added_by(asked(turn))
    assert '{"name": "bash", "arguments": {"command":"ls"}}\n</tool_call>' in added_by(asked(turn))


def test_an_answer_is_truncated_between_two_characters() -> None:
    answered = body(engine(lambda conversation: "a☃b"), asked(*FIRST, most=3))

    assert (answered.text, answered.finish_reason) == ("a", "length")
    assert tokens(answered.token_ids) == list("a☃".encode())[:3]


def test_a_call_for_no_tokens_only_counts_the_prompt() -> None:
    answered = body(engine(scripted_models.raising), asked(*FIRST, most=0))

    assert (answered.text, answered.token_ids) == ("", b"")
    assert bytes(tokens(answered.added_ids)).decode() == SPOKEN


@pytest.mark.parametrize(
    ("speak", "said"),
    [
        (scripted_models.raising, r"script 'mine' raised: ValueError: out of words\? after"),
        (scripted_models.leaving, "script 'mine' raised: SystemExit: 3"),
        (scripted_models.silent, "script 'mine' said NoneType; it must say text"),
        (lambda conversation: conversation.encode(), "said bytes"),
        (lambda conversation: conversation[10**9], "raised: IndexError"),
    ],
)
def test_a_failing_script_fails_its_call_permanently(speak: Speak, said: str) -> None:
    one = engine(speak)

    failed = failure(one, asked(*FIRST))

    assert (failed.code, failed.retriable) == ("script_failed", False)
    assert re.search(said, failed.message)


def test_characters_outside_utf8_become_question_marks() -> None:
    answered = body(engine(lambda conversation: "a\ud800b\0"), asked(*FIRST))

    assert answered.text == "a?b\0"


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (asked(Message("assistant", tool_calls="{")), "not_renderable"),
        (asked(*FIRST, tools="{"), "not_renderable"),
        (asked(*FIRST, prefix=pack_ids([70_000, 3])), "bad_prefix"),
        (asked(*FIRST, prefix=pack_ids([-1])), "bad_prefix"),
    ],
)
def test_an_unrenderable_call_fails_permanently(one: ModelCall, code: str) -> None:
    failed = failure(engine(scripted_models.word), one)

    assert (failed.code, failed.retriable) == (code, False)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("tests.support.scripted_models", "neither a shipped name nor module:function"),
        ("no.such.module:word", "cannot be imported"),
        ("tests.support.broken_module:word", "cannot be imported"),
        ("tests.support.scripted_models:wrod", "did you mean 'word'"),
        ("tests.support.scripted_models:NUMBER", "is a int, not a function"),
        ("tests.support.scripted_models:later", "answers at once"),
        ("tests.support.scripted_models:nothing_asked", "cannot be called with one text"),
    ],
)
def test_a_script_that_cannot_be_called_is_refused(reference: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        load_script(reference)


def test_a_script_is_found_by_its_name() -> None:
    assert load_script("tests.support.scripted_models:word") is scripted_models.word
