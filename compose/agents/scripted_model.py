"""A model and an environment with scripted answers, behind one endpoint of the gateway."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply, Reply, StepReply
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text

TOKEN_ID, LOGPROB = 1, -0.5
"""The one token that every answer is said to consist of, for agents that want tokens."""


async def answer_requests(
    endpoint: GatewayEndpoint, reply_to: Callable[[AgentRequest], Reply]
) -> None:
    """Reply to each request of an endpoint at once, until the endpoint is closed."""
    while not endpoint.closed:
        for request in endpoint.open_requests():
            endpoint.answer(reply_to(request))
        await endpoint.wait(None)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The policy's answer to a call: text, or a call of one tool."""

    text: str = ""
    tool: str = ""
    arguments: str = "{}"


@dataclass(slots=True)
class ScriptedModel:
    """Answers model calls and steps from lists; the last entry repeats."""

    answers: Sequence[ScriptedAnswer]
    steps: Sequence[Mapping[str, Any]]
    """The environment's answers, by the fields of a step's answer that are not the default."""
    calls: int = 0
    """The number of answered model calls, without those that only count tokens."""
    actions: list[str] = field(default_factory=list)
    """The actions for the environment."""
    result: str | None = None
    """The result that the agent returned."""

    def reply_to(self, request: AgentRequest) -> Reply:
        """Return the reply to a request, and record its text."""
        if request.kind == "model":
            return self._answered(request)
        if request.kind == "finish":
            self.result = request.text
            return StepReply(request.d, "")
        self.actions.append(request.text)
        return StepReply(request.d, **{"info": "{}", **_entry(self.steps, len(self.actions))})

    def _answered(self, request: AgentRequest) -> ModelReply:
        if request.max_tokens == 0:  # it only counts the tokens of its messages
            return ModelReply(request.d, (Choice(""),), prompt_tokens=1)
        self.calls += 1
        said = _entry(self.answers, self.calls)
        calls = [ToolCall(f"call_{self.calls}", said.tool, said.arguments)] if said.tool else []
        choice = Choice(
            said.text,
            tool_calls=tool_calls_text(calls),
            sampled_tokens=1,
            token_ids=(TOKEN_ID,) if request.token_ids or request.logprobs else None,
            logprobs=(LOGPROB,) if request.logprobs else None,
        )
        prompt_ids = (TOKEN_ID,) if request.token_ids else None
        name = f"{self.calls:032x}"
        return ModelReply(
            request.d, (choice,) * request.n, name, prompt_tokens=1, prompt_token_ids=prompt_ids
        )


def _entry(script: Sequence[Any], number: int) -> Any:
    """Return a script's entry for the request of a number, from 1."""
    return script[min(number, len(script)) - 1]
