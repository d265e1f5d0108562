"""Run an agent against a scripted endpoint, and report its requests."""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollcall.compose.agents.scripted_endpoint import KEY, ScriptedAnswer, ScriptedEndpoint
from rollcall.inference.dialects.dialect import ParsedRequest
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.schemas.errors import WorkFailed

LONGEST_S = 300.0
"""The timeout of a trial, without the agent's import."""
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
    """The record of one trial, by the endpoint and the kernel."""

    config: Mapping[str, Any]
    wrong: str = ""
    """The reason why the agent cannot be used; empty if it can."""
    import_s: float = 0.0
    threads: int = 0
    """The number of threads of its fork server; more than one makes forking unsafe."""
    calls: list[str] = field(default_factory=list)
    """Its model calls, a line each."""
    actions: list[str] = field(default_factory=list)
    """Its actions in the environment."""
    result: str | None = None
    last_words: str = ""


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
    task = {"prompt": "Look around.", "system": "", "seed": 0, "limits": {}, "config": dict(config)}
    seen = Played(config)
    async with ScriptedEndpoint(task, trial.answers, trial.steps).serving() as endpoint:
        try:
            ready = await processes.prepare(name, config)
            seen.import_s, seen.threads = ready["import_s"], ready["threads"]
            process = await processes.start(name, config, url=endpoint.url, key=KEY)
        except WorkFailed as error:
            seen.wrong = str(error)
            return seen
        try:
            async with asyncio.timeout(LONGEST_S):
                ended = await process.wait()
        except TimeoutError:
            ended = await process.close()
            seen.wrong = f"it did not end within {LONGEST_S:g} s"
        seen.calls = [described(path, request) for path, request in endpoint.calls]
        seen.actions, seen.result = endpoint.actions, endpoint.result
        seen.last_words = ended.last_words
        how = f"code {ended.code}" if ended.code is not None else f"signal {ended.signal}"
        if ended.code != 0:
            seen.wrong = (
                seen.wrong or f"it ended with {how}, saying {_last_line(seen.last_words)!r}"
            )
        elif name in TRIALS and (seen.result or "").strip() != RESULT:
            seen.wrong = f"it handed in {seen.result!r}, {RESULT!r} was expected"
    return seen


def described(path: str, request: ParsedRequest) -> str:
    """Describe a model call in a line, by the parts that matter to an endpoint."""
    ask = request.ask
    words = [path, _count(len(ask.messages), "message")]
    if ask.tools:
        words.append(_count(len(orjson.loads(ask.tools)), "tool"))
    if ask.stop:
        words.append(f"stop {list(ask.stop)}")
    if request.stream:
        words.append("as a stream")
    return ", ".join(words)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else ""
