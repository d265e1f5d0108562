"""An agent changes its tools within a conversation: the policy's view and the training data."""

import json
import re
from collections.abc import Sequence
from functools import partial

import pytest

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, ModelAnswer, Task, user
from rollcall.consumers.audit.audit import audit
from rollcall.inference.scripted import LOGPROB, ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.schemas.agent_requests import AgentRequest, ModelReply
from rollcall.schemas.messages import Message, RolloutRequest, Trajectory
from rollcall.schemas.messages import Sequence as Tokens
from rollcall.schemas.messages import Task as WireTask
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.schemas.tool_calls import tool_calls_of
from tests.support.hosted_rollout import Asks, CoroutineHost
from tests.support.journals import Hand
from tests.support.rig import Rig

Turn = tuple[str, str]
"""Names of the tools, and the choice among them."""


def definitions(names: str) -> str:
    """Definitions of tools with one-letter names; empty for none."""
    told = [{"type": "function", "function": {"name": name}} for name in names]
    return json.dumps(told, separators=(",", ":")) if names else ""


async def agent(turns: Sequence[Turn], request: Asks) -> int:
    """Calls the policy once a turn and reports the outcome of every call."""
    messages = [Message("system", "Be brief."), Message("user", "Go!")]
    for names, choice in turns:
        tools = definitions(names)
        reply = await request(
            AgentRequest("model", tuple(messages), tools=tools, tool_choice=choice)
        )
        assert isinstance(reply, ModelReply), reply
        [said] = reply.choices
        messages.append(Message("assistant", said.text, said.tool_calls))
        results = [Message("tool", "ok", "", call.id) for call in tool_calls_of(said.tool_calls)]
        messages += results or [Message("user", "And?")]
    return 0


class Policy:
    """Calls the last tool it was given and records every conversation."""

    def __init__(self) -> None:
        self.saw: list[str] = []

    def speak(self, conversation: str) -> str:
        self.saw.append(conversation)
        told = told_of(conversation)
        if not told:
            return f"word {len(self.saw)}"
        return f'<tool_call>\n{{"name": "{told[-1]}", "arguments": {{}}}}\n</tool_call>'


def told_of(conversation: str) -> str:
    """The names of the tools that a conversation defines."""
    _, _, defined = conversation.partition("</tools> XML tags:\n<tools>\n")
    return "".join(re.findall(r'"function": {"name": "(\w)"', defined.partition("</tools>")[0]))


def lived(*turns: Turn) -> tuple[Policy, Trajectory]:
    rig, policy = Rig(), Policy()
    hosts = CoroutineHost({"x": partial(agent, turns)}).at
    engine = ScriptedEngine("p", text_script(policy.speak, "speak"), render=added_by)
    config = json.dumps({"agent": "command", "argv": ["x"]})
    rig.ask(RolloutRequest("r", WireTask(prompt="Go!"), "hosted", config, policy_id="p"))
    rig.settle(rig.agents(), rig.models(engine), rig.environments(hosts=hosts, slots={"hosted": 1}))
    rig.close()

    assert audit(rig).ok
    [trajectory] = rig.trajectories()
    assert trajectory.status == "finished", trajectory.reason
    return policy, trajectory


@pytest.mark.parametrize(
    ("turns", "told", "sequences"),
    [
        ([("a", "auto"), ("a", "auto"), ("a", "auto")], ["a", "a", "a"], 1),
        ([("a", "auto"), ("a", "auto"), ("ab", "auto"), ("ab", "auto")], ["a", "a", "ab", "ab"], 2),
        ([("ab", "auto"), ("b", "auto"), ("b", "auto")], ["ab", "b", "b"], 2),
        ([("a", "auto"), ("", "auto"), ("", "auto")], ["a", "", ""], 2),
        ([("", "auto"), ("a", "auto")], ["", "a"], 2),
        ([("a", "auto"), ("b", "auto"), ("a", "auto"), ("b", "auto")], ["a", "b", "a", "b"], 2),
        ([("a", "auto"), ("a", "none"), ("a", "required"), ("a", "function:a")], ["a"] * 4, 1),
        ([("a", "none"), ("a", "none"), ("a", "auto"), ("a", "none")], ["", "", "a", "a"], 2),
    ],
)
def test_the_policy_sees_exactly_the_current_tools(
    turns: list[Turn], told: list[str], sequences: int
) -> None:
    policy, trajectory = lived(*turns)

    assert [told_of(conversation) for conversation in policy.saw] == told
    assert len(trajectory.sequences or ()) == sequences
    assert trajectory.model_calls == len(turns)


def test_a_tool_call_stays_text_if_no_call_is_wanted() -> None:
    _, trajectory = lived(("a", "auto"), ("a", "none"))

    [sequence] = trajectory.sequences or ()
    assert [bool(m.tool_calls) for m in sequence.messages if m.role == "assistant"] == [True, False]
    assert "<tool_call>" in sequence.messages[-1].content


@pytest.mark.parametrize(
    "turns", [[("a", "auto"), ("ab", "auto"), ("a", "auto"), ("ab", "none"), ("", "auto")]]
)
def test_every_token_is_trained_after_its_exact_sampling_context(turns: list[Turn]) -> None:
    policy, trajectory = lived(*turns)
    sequences = trajectory.sequences or ()

    sampled_after = [text for sequence in sequences for text in before_each_answer(sequence)]
    assert sorted(sampled_after) == sorted(policy.saw)
    assert sum(sum(sequence.loss_mask) for sequence in sequences) == trajectory.sampled_tokens
    for sequence in sequences:
        logprobs = logprobs_of(sequence.behaviour_logprobs).tolist()
        assert logprobs == [LOGPROB * sampled for sampled in sequence.loss_mask]
        assert [version >= 0 for version in ids_of(sequence.versions)] == [
            bool(sampled) for sampled in sequence.loss_mask
        ]


def before_each_answer(sequence: Tokens) -> list[str]:
    """The text up to where each run of sampled tokens begins; a token is a byte."""
    ids, mask = bytes(ids_of(sequence.token_ids).tolist()), sequence.loss_mask
    begins = [at for at in range(len(mask)) if mask[at] and not (at and mask[at - 1])]
    return [ids[:at].decode() for at in begins]


def tells(*tools: str | None) -> Agent:
    messages = [user("Go!")]
    for given in tools:
        answer: ModelAnswer = yield CallModel(messages, tools=given)
        messages += [answer.message, user("And?")]
    yield Finish()


@pytest.mark.parametrize(
    ("tools", "sequences"),
    [
        ([None, None], [0, 0]),
        (["A", None, "A"], [0, 0, 0]),
        (["A", "", "A"], [0, 1, 0]),
        ([None, "", "A", None], [0, 0, 1, 1]),
    ],
)
def test_a_program_without_tools_continues_regardless_of_earlier_tools(
    tools: list[str | None], sequences: list[int]
) -> None:
    def program(task: Task) -> Agent:
        yield from tells(*tools)

    hand = Hand(program)
    [call] = hand.start("program")
    found = []
    for given in tools:
        assert call.tools == (given or "")
        found.append(call.sequence)
        [call] = hand.say(call, "yes")

    assert found == sequences
