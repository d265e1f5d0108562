"""The hosted part of the chaos workload: its requests, its agents, its processes."""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.chaos import hosted_agents, workload
from rollcall.compose.chaos.faults import CUTS, KILL, PROCESSES, ROLES
from rollcall.compose.chaos.plan import ChaosPlan
from rollcall.compose.chaos.victims import agents_below
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.sandbox.agents.shipped import check_agent
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest
from tests.support.waiting import holds

NUMBERS = range(2000)


def hosted() -> list[RolloutRequest]:
    requests = [workload.request(7, number) for number in NUMBERS]
    return [each for each in requests if each.agent == workload.AGENT_OF_OTHERS]


def test_about_one_in_twenty_rollouts_is_hosted_by_function_or_command() -> None:
    configs = [json.loads(each.agent_config) for each in hosted()]

    for config in configs:
        check_agent(config)
    assert 0.5 < len(configs) / (workload.HOSTED * len(NUMBERS)) < 2
    counted = Counter(config["agent"] for config in configs)
    assert counted["python"] > counted["command"] > 0
    functions = {c.get("function", "").rpartition(":")[2] or c["argv"][-1] for c in configs}
    assert functions == set(workload.FUNCTIONS)
    assert all(hasattr(hosted_agents, name) for name in functions)


def test_other_requests_stay_the_same_without_hosted_agents() -> None:
    for number in NUMBERS:
        alone, among = workload.request(7, number, hosts=False), workload.request(7, number)
        assert alone.agent in workload.AGENTS
        config = json.loads(among.task.environment_config)
        config.pop("heavy", None)  # nothing goes to an object store then either
        light = replace(among, task=replace(among.task, environment_config=json.dumps(config)))
        assert alone in (among, light) or among.agent == workload.AGENT_OF_OTHERS


class Endpoint(ThreadingHTTPServer):
    """Gives all the same answer, and records the model requests; refuses those after `most`."""

    def __init__(self, most: int) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.most, self.heard = most, list[str]()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {"text": "door", "terminated": False}
        if self.path != "/v1/step":
            self.server.heard.append(body["messages"][-1]["content"])
            answer = {"choices": [{"message": {"content": "on"}}]}
        self.send_response(200 if len(self.server.heard) <= self.server.most else 503)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def heard_of(name: str, most: int) -> tuple[list[str], str]:
    """The requests of an agent to the policy, and its result."""
    task = {"observation": "door", "config": {"turns": 3}}
    with Endpoint(most) as endpoint:
        result = getattr(hosted_agents, name)(task, endpoint.url, "key")
        endpoint.shutdown()
        return endpoint.heard, result


@pytest.mark.parametrize("name", workload.FUNCTIONS)
def test_agent_never_sends_the_same_message_twice(name: str) -> None:
    heard, _ = heard_of(name, most=100)

    assert len(heard) == len(set(heard)) >= 3


@pytest.mark.parametrize("name", workload.FUNCTIONS)
def test_refused_agent_ends_without_asking_again(name: str) -> None:
    heard, result = heard_of(name, most=0)

    assert len(heard) == len(set(heard)) <= hosted_agents.CALLERS
    assert "then 503" in result


def test_noisy_agent_sends_different_messages_in_every_life() -> None:
    lives = [set(heard_of("noisy", most=100)[0]) for _ in range(2)]

    assert not lives[0] & lives[1]


def test_only_processes_are_killed_when_only_they_are_selected() -> None:
    faults = ChaosPlan(3, [PROCESSES], minutes=1).faults()

    assert {(fault.kind, fault.role) for fault in faults} == {(KILL, PROCESSES)}
    assert len({fault.victim for fault in faults}) == 2


def test_chaos_beside_another_release_kills_no_processes(tmp_path: Path) -> None:
    wheel = tmp_path / "older.whl"
    wheel.touch()

    plan = ChaosPlan(3, ROLES, minutes=1, beside=wheel)

    assert not plan.hosts
    assert PROCESSES not in plan.victims()
    assert set(CUTS) < {fault.kind for fault in plan.faults()}
    with pytest.raises(Refused, match="goes without hosted rollouts"):
        ChaosPlan(3, [PROCESSES], minutes=1, beside=wheel)


def test_agents_of_a_worker_are_found_among_its_child_processes_only(tmp_path: Path) -> None:
    async def live() -> Sequence[tuple[int, int | None]]:
        processes = AgentProcesses(tmp_path / "agents", tmp_path / "scratch")
        silent = tmp_path / "silent.py"
        silent.write_text("import time\nprepared = time.time()\ndef be(*_):\n    time.sleep(60)\n")
        config = {"agent": "python", "function": f"{silent}:be"}
        asleep = await listening()
        try:
            await processes.prepare("python", config)
            assert agents_below(os.getpid()) == []
            agents = [
                await processes.start("python", config, url=asleep[1], key="k") for _ in range(2)
            ]
            await holds(lambda: len(agents_below(os.getpid())) >= len(agents))
            found = agents_below(os.getpid())
            assert found == sorted(agent.pid for agent in agents)
            os.kill(found[0], signal.SIGKILL)
            ended = await next(agent for agent in agents if agent.pid == found[0]).wait()
            return [(found[0], ended.signal)]
        finally:
            await processes.close()
            asleep[0].close()

    async def listening() -> tuple[asyncio.Server, str]:
        """An endpoint that takes connections and never answers."""

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    [(_, ended_by)] = asyncio.run(live())

    assert ended_by == signal.SIGKILL
    assert agents_below(os.getpid()) == []
