"""Hosted rollouts without a log, a gateway or a process: agents are coroutines that ask.

The rollout's journal is folded by today's fold, its commands are answered here: model calls by a
function, steps by `rollcall.sandbox.sessions` with real environments. Whoever holds the sessions
may be taken away at any moment, and so may the agent.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint, OpenCalls
from rollcall.consumers.loop.answers import event_of
from rollcall.sandbox.agents.agent_processes import AgentExit
from rollcall.sandbox.environment import AnyEnvironment, Observation, make_environment
from rollcall.sandbox.environments.hosted_agent import HostedAgent
from rollcall.sandbox.sessions import Sessions
from rollcall.schemas.agent_requests import AgentRequest, ModelReply, Reply, StepReply
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStep,
    Event,
    Limits,
    Message,
    ModelCall,
    RolloutRequest,
    Task,
    Trajectory,
)
from tests.support.journals import Hand, said

Asks = Callable[[AgentRequest], Awaitable[Reply]]
Agent = Callable[[Asks], Awaitable[int]]
"""An agent asks, and returns its exit code."""


class Gone(Exception):
    """The endpoint was closed while the agent ran, which gets 404."""


def model_request(*texts: str, **fields: Any) -> AgentRequest:
    """Who speaks takes turns, as in any conversation."""
    messages = tuple(Message(("user", "assistant")[n % 2], text) for n, text in enumerate(texts))
    return AgentRequest("model", messages, **fields)


async def chat(ask: Asks, *opening: str, turns: int) -> list[str]:
    """Ask, answer with a number, ask again."""
    texts = list(opening)
    for turn in range(turns):
        reply = await ask(model_request(*texts))
        assert isinstance(reply, ModelReply), reply
        texts += [reply.choices[0].text, f"turn {turn}"]
    return texts


async def plain(ask: Asks) -> int:
    """Asks, acts, asks, acts; ends when it is told to."""
    texts = ["what now?"]
    while len(texts) < 7:
        said = await ask(model_request(*texts))
        if not isinstance(said, ModelReply):
            break
        shown = await ask(AgentRequest("step", text=said.choices[0].text))
        if not isinstance(shown, StepReply) or shown.terminated:
            break
        texts += [said.choices[0].text, shown.text]
    await ask(AgentRequest("finish", text="; ".join(texts)))
    return 0


async def parallel(ask: Asks) -> int:
    """Two callers, and two equal votes beside them."""

    async def once(opening: str) -> str:
        first = await ask(model_request(opening))
        return texts_of(first)[0] if isinstance(first, ModelReply) else ""

    said = await asyncio.gather(once("left"), once("right"), once("vote"), once("vote"))
    await ask(AgentRequest("finish", text=",".join((*said[:2], *sorted(said[2:])))))
    return 0


NUMBERS = iter(range(1 << 30))


async def noisy(ask: Asks) -> int:
    """Never says the same, and never remembers."""
    first = await ask(model_request(f"I am number {next(NUMBERS)}"))
    if isinstance(first, ModelReply):
        await ask(model_request("and now?", first.choices[0].text, "what?"))
    return 0


async def failing(ask: Asks) -> int:
    """Takes one answer and fails."""
    await ask(model_request("shall I?"))
    return 3


AGENTS_OF_OTHERS: Mapping[str, Agent] = {
    "plain": plain,
    "parallel": parallel,
    "noisy": noisy,
    "failing": failing,
}


class CoroutineProcess:
    """An agent that is a coroutine; killed at its next await."""

    def __init__(self, run: Callable[[], Awaitable[int]]) -> None:
        self._task = asyncio.ensure_future(self._live(run))
        self._killed = False

    async def _live(self, run: Callable[[], Awaitable[int]]) -> AgentExit:
        try:
            code: int | None = await run()
            words = b"" if code == 0 else b"it ended badly"
            return AgentExit(code, None, words, len(words))
        except asyncio.CancelledError:
            return AgentExit(None, 9, b"", 0)

    def kill(self) -> None:
        self._task.cancel()

    async def wait(self) -> AgentExit:
        return await asyncio.shield(self._task)

    async def close(self) -> AgentExit:
        self.kill()
        return await self.wait()


@dataclass
class CoroutineHost:
    """Hosts coroutines, by the first word of their `argv`, at endpoints without HTTP."""

    agents: Mapping[str, Agent]
    place: str = ""
    endpoints: dict[str, GatewayEndpoint] = field(default_factory=dict)
    processes: list[CoroutineProcess] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    tasks: list[Mapping[str, Any]] = field(default_factory=list)

    def at(self, place: str) -> "CoroutineHost":
        """The same for everybody."""
        del place
        return self

    async def open_endpoint(
        self, policies: Sequence[str], task: Mapping[str, object], listener: None = None
    ) -> GatewayEndpoint:
        assert listener is None
        key = str(len(self.endpoints))
        self.tasks.append(task)
        endpoint = GatewayEndpoint(
            f"http://{key}", key, policies, task, OpenCalls(), lambda closed: None
        )
        self.endpoints[key] = endpoint
        return endpoint

    async def start(
        self, agent: str, config: Mapping[str, Any], *, url: str, key: str, box: None = None
    ) -> CoroutineProcess:
        del agent, url, box
        endpoint, agent_of = self.endpoints[key], self.agents[config["argv"][0]]

        async def ask(what: AgentRequest) -> Reply:
            await asyncio.sleep(0)
            if endpoint.closed:
                raise Gone
            reply = await endpoint.attach(what).reply()
            if reply is None:
                raise Gone
            return reply

        async def run() -> int:
            with suppress(Gone):
                return await agent_of(ask)
            return 1

        self.processes.append(CoroutineProcess(run))
        return self.processes[-1]

    def keep(self, name: str, content: bytes) -> str:
        self.kept[name] = content
        return f"memory://{name}"


@dataclass
class HostedRun:
    """One hosted rollout, from its start to its trajectory."""

    agent: Agent | None = None
    random: Random = field(default_factory=lambda: Random(0))
    say: Callable[[ModelCall], str] = lambda call: f"said {call.seed % 1000}"
    task: Task = field(default_factory=lambda: Task(prompt="do it"))
    limits: Limits = field(default_factory=Limits)
    config: Mapping[str, Any] = field(default_factory=dict)
    disturb: Callable[["HostedRun"], Awaitable[None]] | None = None
    """Awaited before every command is answered."""
    answered: int = 0
    calls: list[ModelCall] = field(default_factory=list)
    """Those that were answered."""

    def __post_init__(self) -> None:
        self.hand = Hand()
        self.host: Any = CoroutineHost({"x": self.agent}) if self.agent else None
        self.sessions = self.fresh()
        self.decisions: list[Event] = []
        self.trajectory: Trajectory | None = None

    def fresh(self) -> Sessions:
        def make(name: str, config_json: str) -> AnyEnvironment:
            if name == "hosted":
                return HostedAgent(**json.loads(config_json), host=self.host)
            return make_environment(name, config_json, self.host)

        return Sessions(make)

    async def move(self) -> None:
        """The worker dies, and its processes with it; another one takes over."""
        old, self.sessions = self.sessions, self.fresh()
        await old.close()

    async def run(self, timeout_s: float = 30.0) -> Trajectory:
        config = {"agent": "command", "argv": ["x"], **self.config}
        request = RolloutRequest(
            "r", self.task, "hosted", json.dumps(config), policy_id="p", limits=self.limits
        )
        pending: list[Any] = list(self.hand.start(request))
        async with asyncio.timeout(timeout_s):
            while self.trajectory is None:
                if self.disturb:
                    await self.disturb(self)
                effect = pending.pop(self.random.randrange(len(pending)))
                pending += await self._after(effect)
        await self.sessions.close()
        return self.trajectory

    async def _after(self, effect: Any) -> list[Any]:
        if isinstance(effect, Trajectory):
            self.trajectory = effect
            return []
        if isinstance(effect, Event):
            self.decisions.append(effect)
            return self.hand.read(effect)
        if effect.kind in ("close", "abort"):
            if isinstance(effect, EnvironmentStep):
                await self.sessions.handle(effect)
            return []
        body = await self._body(effect)
        self.answered += 1
        return self.hand.read(event_of(effect, body, "somebody"))

    async def _body(self, command: Command) -> Any:
        try:
            if isinstance(command, ModelCall):
                self.calls.append(command)
                return said(command, self.say(command))
            return await self.sessions.handle(command)
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)


class Echo:
    """An environment that numbers what it is told; `end` ends it."""

    replayable = True

    def open(self, seed: int) -> Observation:
        self.number = 0
        return Observation("a room")

    def step(self, action: str) -> Observation:
        self.number += 1
        ends = action == "end"
        return Observation(f"{self.number} {action}", reward=float(ends), terminated=ends)

    def close(self) -> None:
        pass


def texts_of(reply: Reply) -> list[str]:
    """What was said, or shown."""
    if isinstance(reply, ModelReply):
        return [choice.text for choice in reply.choices]
    assert isinstance(reply, StepReply)
    return [reply.text]


def model_calls_of(rig: Any, rollout_id: str) -> list[ModelCall]:
    """What was asked of the model, without the courtesies."""
    calls = rig.read(rig.topics.calls("p"), ModelCall)
    return [each for each in calls if each.rollout_id == rollout_id and each.kind == "sample"]
