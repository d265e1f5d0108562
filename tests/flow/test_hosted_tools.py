"""An agent with a vendor's API calls tools, and its conversation is one sequence."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rollcall.inference.dialects.dialect import ParsedRequest
from rollcall.inference.dialects.routes import ROUTES, declined_by
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.inference.tools import no_form
from rollcall.schemas.agent_requests import ErrorReply, ModelReply
from rollcall.schemas.messages import ModelCall, RolloutRequest, Task
from tests.support.hosted_rollout import Asks, CoroutineHost
from tests.support.rig import Rig

Body = dict[str, Any]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
FUNCTION = {"name": "bash", "description": "Run", "parameters": {"type": "object"}}


class ChatAgent:
    """Asks with `messages`, and sends the answers back."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self.said: list[Any] = [{"role": "user", "content": "What is there?"}]

    def body(self) -> Body:
        return {"messages": self.said, "tools": [{"type": "function", "function": FUNCTION}]}

    def hear(self, answer: Body) -> list[str]:
        """The ids of the calls that it makes."""
        message = answer["choices"][0]["message"]
        self.said.append(message)
        return [call["id"] for call in message.get("tool_calls", ())]

    def show(self, call_id: str, result: str) -> None:
        self.said.append({"role": "tool", "tool_call_id": call_id, "content": result})


class ResponsesAgent(ChatAgent):
    path = "/v1/responses"

    def body(self) -> Body:
        return {"input": self.said, "tools": [{"type": "function", **FUNCTION}]}

    def hear(self, answer: Body) -> list[str]:
        self.said += answer["output"]
        return [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]

    def show(self, call_id: str, result: str) -> None:
        self.said.append({"type": "function_call_output", "call_id": call_id, "output": result})


class MessagesAgent(ChatAgent):
    path = "/v1/messages"

    def body(self) -> Body:
        schema = FUNCTION["parameters"]
        tools = [{"name": "bash", "description": "Run", "input_schema": schema}]
        return {"messages": self.said, "tools": tools, "max_tokens": 500}

    def hear(self, answer: Body) -> list[str]:
        self.said.append({"role": "assistant", "content": answer["content"]})
        return [block["id"] for block in answer["content"] if block["type"] == "tool_use"]

    def show(self, call_id: str, result: str) -> None:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        if self.said[-1]["role"] == "user":
            self.said[-1]["content"].append(block)
        else:
            self.said.append({"role": "user", "content": [block]})


AGENTS = pytest.mark.parametrize("kind", [ChatAgent, ResponsesAgent, MessagesAgent])


def requests_of(agent: ChatAgent, errors: list[ErrorReply]) -> Callable[[Asks], Any]:
    """Ask until no tool is called any more; one coroutine agent for `CoroutineHost`."""
    dialect = ROUTES[agent.path]

    async def live(ask: Asks) -> int:
        while True:
            body = json.dumps(agent.body()).encode()
            request: ParsedRequest = dialect.read(body, ["p"], {})
            reply = await ask(request.request)
            if isinstance(reply, ErrorReply):
                errors.append(reply)
                return 0
            assert isinstance(reply, ModelReply)
            calls = agent.hear(json.loads(dialect.body(request, reply)))
            if not calls:
                return 0
            for number, call in enumerate(calls):
                agent.show(call, f"file {number}")

    return live


def lived(agent: ChatAgent, policy: ScriptedEngine) -> tuple[Rig, list[ErrorReply]]:
    errors: list[ErrorReply] = []
    hosts = CoroutineHost({"x": requests_of(agent, errors)})
    rig = Rig()
    config = json.dumps({"agent": "command", "argv": ["x"]})
    rig.ask(RolloutRequest("r", Task(prompt="do it"), "hosted", config, policy_id="p"))
    with closing(rig):
        rig.settle(
            rig.agents(), rig.models(policy), rig.environments(hosts=hosts.at, slots={"hosted": 1})
        )
    return rig, errors


@AGENTS
def test_tool_calls_and_results_extend_one_sequence(kind: type[ChatAgent]) -> None:
    def speak(conversation: str) -> str:
        called = conversation.count("assistant\n")
        return f"I look.\n{CALL}\n{CALL}" if called < 3 else "Two files."

    rig, errors = lived(kind(), ScriptedEngine("p", text_script(speak, "s"), render=added_by))

    (trajectory,) = rig.trajectories()
    assert (trajectory.status, errors) == ("finished", []), trajectory.reason
    (sequence,) = trajectory.sequences or ()
    roles = [message.role for message in sequence.messages]
    assert roles == ["user", *["assistant", "tool", "tool"] * 2, "assistant"]
    ids = {message.tool_call_id for message in sequence.messages} - {""}
    called = {c["id"] for m in sequence.messages for c in json.loads(m.tool_calls or "[]")}
    assert ids == called
    assert len(ids) == 4
    calls = rig.read(rig.topics.calls("p"), ModelCall)
    assert [len(call.messages) for call in calls] == [1, 2, 2]


@AGENTS
def test_missing_tool_template_is_reported_to_the_agent_with_its_setting(
    kind: type[ChatAgent],
) -> None:
    def script(call: ModelCall) -> str:
        raise no_form("words")

    rig, (error,) = lived(kind(), ScriptedEngine("p", script))

    assert error.status == 400
    assert '"tools": "hermes"' in str(declined_by(error))
    assert len(rig.read(rig.topics.calls("p"), ModelCall)) == 1
