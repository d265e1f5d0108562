"""What an agent asks is shown as a conversation, and nothing that was said is said twice."""

import pytest

from compose.pages.agent_lines import agent_words, spoken
from schemas.asks import Ask, asks_text
from schemas.messages import EnvironmentStepped, Message
from schemas.tool_calls import ToolCall, tool_calls_text

CALLS = tool_calls_text([ToolCall("call_1", "bash", '{"command": "ls"}')])
FIRST = Ask("model", (Message("user", "What is there?"),))
SAID = Message("assistant", "I look.", CALLS)
SEEN = Message("tool", "notes.txt", tool_call_id="call_1")


def stepped(*asks: Ask, **fields: object) -> EnvironmentStepped:
    text = asks_text(asks, [FIRST])
    return EnvironmentStepped(**{"session": "agent", "text": text, **fields})


def test_calls_of_tools_are_shown_by_name_and_arguments() -> None:
    assert spoken("I look.", CALLS) == 'I look.\ncalls bash {"command":"ls"}'
    assert spoken("", CALLS) == 'calls bash {"command":"ls"}'
    assert spoken("", "no JSON") == "no JSON"


def test_what_the_policy_has_said_is_not_shown_again_with_what_follows() -> None:
    step = stepped(Ask("model", (*FIRST.messages, SAID, SEEN)))

    assert agent_words(step, {("I look.", CALLS)}) == "tool: notes.txt"
    assert agent_words(step) == ('assistant: I look.\ncalls bash {"command":"ls"}\ntool: notes.txt')


@pytest.mark.parametrize(
    ("asks", "fields", "words"),
    [
        ([Ask("step", text="ls")], {}, "acts: ls"),
        ([Ask("finish", text="2")], {}, "hands in: 2"),
        ([], {}, "asks nothing more yet"),
        ([], {"terminated": True, "info": '{"exit_code": 0}'}, "ended with code 0"),
        ([], {"terminated": True, "info": '{"signal": 9}'}, "ended by signal 9"),
    ],
)
def test_what_else_it_asks_is_said_in_words(
    asks: list[Ask], fields: dict[str, object], words: str
) -> None:
    assert agent_words(stepped(*asks, **fields)) == words


def test_what_another_environment_shows_is_no_ask() -> None:
    assert agent_words(stepped(FIRST, session="main")) is None
    assert agent_words(EnvironmentStepped(session="agent", text="a door")) is None
