"""Agent requests are shown as a conversation, without repeated messages."""

import pytest

from rollcall.compose.pages.agent_lines import describe_requests, message_text
from rollcall.schemas.agent_requests import AgentRequest, requests_text
from rollcall.schemas.messages import EnvironmentStepped, Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text

CALLS = tool_calls_text([ToolCall("call_1", "bash", '{"command": "ls"}')])
FIRST = AgentRequest("model", (Message("user", "What is there?"),))
SAID = Message("assistant", "I look.", CALLS)
SEEN = Message("tool", "notes.txt", tool_call_id="call_1")


def stepped(*asks: AgentRequest, **fields: object) -> EnvironmentStepped:
    text = requests_text(asks, [FIRST])
    return EnvironmentStepped(**{"session": "agent", "text": text, **fields})


def test_tool_calls_are_shown_by_name_and_arguments() -> None:
    assert message_text("I look.", CALLS) == 'I look.\ncalls bash {"command":"ls"}'
    assert message_text("", CALLS) == 'calls bash {"command":"ls"}'
    assert message_text("", "no JSON") == "no JSON"


def test_earlier_policy_answers_are_not_repeated_on_later_lines() -> None:
    step = stepped(AgentRequest("model", (*FIRST.messages, SAID, SEEN)))

    assert describe_requests(step, {("I look.", CALLS)}) == "tool: notes.txt"
    assert describe_requests(step) == (
        'assistant: I look.\ncalls bash {"command":"ls"}\ntool: notes.txt'
    )


@pytest.mark.parametrize(
    ("asks", "fields", "words"),
    [
        ([AgentRequest("step", text="ls")], {}, "acts: ls"),
        ([AgentRequest("finish", text="2")], {}, "hands in: 2"),
        ([], {}, "asks nothing more yet"),
        ([], {"terminated": True, "info": '{"exit_code": 0}'}, "ended with code 0"),
        ([], {"terminated": True, "info": '{"signal": 9}'}, "ended by signal 9"),
    ],
)
def test_other_agent_requests_are_described_in_words(
    asks: list[AgentRequest], fields: dict[str, object], words: str
) -> None:
    assert describe_requests(stepped(*asks, **fields)) == words


def test_steps_of_other_environments_are_not_agent_requests() -> None:
    assert describe_requests(stepped(FIRST, session="main")) is None
    assert describe_requests(EnvironmentStepped(session="agent", text="a door")) is None
