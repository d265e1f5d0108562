"""Hosted rollouts without a log, whose agents are real processes at a real gateway."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consumers.environments.gateway import Gateway
from consumers.environments.line import GatewayLine
from consumers.environments.listener import bind
from sandbox.agents.agent_processes import AgentProcess, AgentProcesses
from schemas.messages import Trajectory
from tests.support.hosted_rollout import HostedRun


class ProcessHost:
    """A host of processes, on the loop of the test."""

    place = "session 'agent'"

    def __init__(self, gateway: Gateway, processes: AgentProcesses) -> None:
        self.gateway, self.processes = gateway, processes
        self.started: list[AgentProcess] = []

    async def line(self, policies: Sequence[str], task: Mapping[str, object]) -> GatewayLine:
        return self.gateway.line(policies, task)

    async def start(
        self, agent: str, config: Mapping[str, Any], *, url: str, key: str
    ) -> AgentProcess:
        self.started.append(await self.processes.start(agent, config, url=url, key=key))
        return self.started[-1]

    def keep(self, name: str, content: bytes) -> str:
        del content
        return name


def lived(folder: Path, *runs: HostedRun) -> list[Trajectory]:
    """One after another, with one gateway and one fork server."""

    async def live() -> list[Trajectory]:
        gateway, processes = Gateway(bind()), AgentProcesses(folder / "agents", folder / "scratch")
        await gateway.start()
        try:
            ended = []
            for run in runs:
                run.host = ProcessHost(gateway, processes)
                ended.append(await run.run())
            return ended
        finally:
            await processes.close()
            await gateway.close()

    return asyncio.run(live())
