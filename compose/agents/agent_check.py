"""Run an agent at the gateway with a scripted model behind it, and report its requests."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollcall.compose.agents.scripted_model import ScriptedAnswer, ScriptedModel, answer_requests
from rollcall.consumers.environments.gateway.adapter_dialect import ADAPTER_ROUTES
from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
from rollcall.consumers.environments.gateway.gateway import Gateway, ObservedRequest
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.inference.dialects.dialect import ParsedRequest
from rollcall.sandbox.agents.agent_processes import AgentExit, AgentProcess, AgentProcesses
from rollcall.schemas.errors import WorkFailed

LONGEST_S = 300.0
"""The timeout of a trial, without the agent's import."""
POLICY = "policy"
MAX_TURNS = 100
"""The limit in the agent's task; the script sets none."""
RESULT = "the end"
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """A trial of an agent: one action, one observation, and its end."""

    answers: Sequence[ScriptedAnswer]
    steps: Sequence[Mapping[str, Any]] = ({"text": "a door"},)
    config: Mapping[str, Any] = field(default_factory=dict)


def _calls(name: str, **arguments: str) -> ScriptedAnswer:
    return ScriptedAnswer(tool=name, arguments=json.dumps(arguments))


def _ran(output: str) -> dict[str, Any]:
    """Return the observation with which environment `shell` shows a command's output."""
    return {"text": f"exit code 0\n{output}", "info": '{"exit_code": 0}'}


ACTS = (_calls("act", action="look"), ScriptedAnswer(RESULT))
TRIALS: Mapping[str, Sequence[AgentTrial]] = {
    "mini-swe-agent": [
        AgentTrial(
            (_calls("bash", command="ls"), _calls("bash", command="submit")),
            (_ran("a door"), _ran(f"{SUBMIT}\n{RESULT}") | {"terminated": True}),
        )
    ],
    "openai-agents": [
        AgentTrial(ACTS),
        AgentTrial(ACTS, config={"api": "chat"}),
        AgentTrial(ACTS, config={"api": "chat_stream"}),
    ],
    "smolagents": [
        AgentTrial(
            (
                ScriptedAnswer("I look.\n<code>\nprint(act('look'))\n</code>"),
                ScriptedAnswer(f"Done.\n<code>\nfinal_answer({RESULT!r})\n</code>"),
            )
        )
    ],
}
"""Trials by agent; for a user's own agent the policy just answers some text."""
ANY = [AgentTrial((ScriptedAnswer(RESULT),))]


@dataclass(slots=True)
class Played:
    """The record of one trial, by the gateway and the kernel."""

    config: Mapping[str, Any]
    wrong: str = ""
    """The reason why the agent cannot be used; empty if it can."""
    import_s: float = 0.0
    threads: int = 0
    """The number of threads of its fork server; more than one makes forking unsafe."""
    calls: list[str] = field(default_factory=list)
    """Its model calls, a line each."""
    declined: list[str] = field(default_factory=list)
    """The requests that the gateway declined, each with its status and the error's message."""
    actions: list[str] = field(default_factory=list)
    """Its actions in the environment."""
    result: str | None = None
    last_words: str = ""

    def see(self, seen: ObservedRequest) -> None:
        """Record a request at the gateway."""
        if seen.declined is not None:
            message = str(seen.declined).removeprefix(f"{seen.method} {seen.path}: ")
            status = seen.declined.status
            self.declined.append(f"{seen.method} {seen.path}: {status}, {message}")
        elif seen.parsed is not None and seen.path not in ADAPTER_ROUTES:
            self.calls.append(described(seen.path, seen.parsed))


def check(home: Path, name: str, config: Mapping[str, Any]) -> list[Played]:
    """Run the trials of an agent until one fails."""
    return asyncio.run(_check(home, name, config))


async def _check(home: Path, name: str, config: Mapping[str, Any]) -> list[Played]:
    played: list[Played] = []
    with tempfile.TemporaryDirectory() as scratch:
        processes = AgentProcesses(home, Path(scratch), even_broken=True)
        try:
            for trial in TRIALS.get(name, ANY):
                given = {"agent": name, **trial.config, **config}
                played.append(await _play(processes, name, given, trial))
                if played[-1].wrong:
                    break
        finally:
            await processes.close()
    return played


async def _play(
    processes: AgentProcesses, name: str, config: Mapping[str, Any], trial: AgentTrial
) -> Played:
    played = Played(config)
    model = ScriptedModel(trial.answers, trial.steps)
    async with _served(played, model) as endpoint:
        try:
            ready = await processes.prepare(name, config)
            played.import_s, played.threads = ready["import_s"], ready["threads"]
            process = await processes.start(name, config, url=endpoint.url, key=endpoint.key)
        except WorkFailed as error:
            played.wrong = str(error)
            return played
        in_time = await _ends(process)
        ended = await process.close()
    played.actions, played.result = model.actions, model.result
    played.last_words = ended.last_words
    late = f"it did not end within {LONGEST_S:g} s"
    wrong = _wrong(name, ended, model.result) if in_time else late
    played.wrong = wrong and wrong + _at_the_gateway(played)
    return played


@asynccontextmanager
async def _served(played: Played, model: ScriptedModel) -> AsyncIterator[GatewayEndpoint]:
    """Open a gateway with one line, answered by the script."""
    gateway = Gateway(bind(), observe=played.see)
    await gateway.start()
    endpoint = gateway.open_endpoint([POLICY], _task(played.config))
    answering = asyncio.create_task(answer_requests(endpoint, model.reply_to))
    try:
        yield endpoint
    finally:
        await gateway.close()
        await answering


def _task(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task with the keys that it has in a rollout."""
    limits = {"max_turns": MAX_TURNS, "max_tokens": 0}
    shown = {"observation": "", "environment": "", "limits": limits, "seed": 0}
    return {"prompt": "Look around.", "system": "", "config": dict(config), **shown}


async def _ends(process: AgentProcess) -> bool:
    """Wait for the agent's end; return False if it has not come after LONGEST_S."""
    try:
        async with asyncio.timeout(LONGEST_S):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _wrong(name: str, ended: AgentExit, result: str | None) -> str:
    """Say why an agent that has ended cannot be used; return an empty text if it can."""
    if ended.code != 0:
        how = f"code {ended.code}" if ended.code is not None else f"signal {ended.signal}"
        last = _last_line(ended.last_words)
        return f"it ended with {how}, " + (f"saying {last!r}" if last else "without output")
    if name in TRIALS and (result or "").strip() != RESULT:
        return f"it handed in {result!r}, {RESULT!r} was expected"
    return ""


def _at_the_gateway(played: Played) -> str:
    """Say what a failure may come from: the last declined request, or that none was made."""
    count = len(played.declined)
    if count:
        which = "" if count == 1 else f"{count} requests, the last one "
        return f"; the gateway declined {which}{played.declined[-1]}"
    return "" if played.calls else "; it made no model call"


def described(path: str, parsed: ParsedRequest) -> str:
    """Describe a model call in a line, by the parts that matter to an endpoint."""
    request = parsed.request
    words = [path, _count(len(request.messages), "message")]
    if request.tools:
        words.append(_count(len(orjson.loads(request.tools)), "tool"))
    if request.stop:
        words.append(f"stop {list(request.stop)}")
    if parsed.stream:
        words.append("as a stream")
    return ", ".join(words)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else ""
