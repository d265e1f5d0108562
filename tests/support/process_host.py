"""Hosted rollouts without a log, whose agents are real processes at a real gateway."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.agent_processes import AgentProcess, AgentProcesses
from rollcall.sandbox.boxes.box import DRIVERS, Box, Spec
from rollcall.sandbox.boxes.box import driver as driver_of
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Trajectory
from tests.support.hosted_rollout import HostedRun


class OwnBoxes:
    """Lends boxes that are opened for whoever asks; the first that is open is that of the task."""

    default = "bubblewrap"

    def __init__(self) -> None:
        self.lent: list[Box] = []
        self.open: list[Box] = []
        self.entered: list[Box] = []

    async def lend(self, driver: str | None, spec: Spec, mode: str = "persistent") -> Box:
        del mode
        self.lent.append(await driver_of(driver or self.default).open(spec))
        self.open.append(self.lent[-1])
        return self.lent[-1]

    async def give_back(self, box: Box, reason: str = "") -> None:
        del reason
        if box in self.open:
            self.open.remove(box)
        await box.close()

    def driver_of(self, driver: str | None, spec: Spec) -> str:
        del spec
        return driver or self.default

    def holds(self, box: Box) -> bool:
        return box in self.open

    def enter_task(self) -> Box:
        if not self.open or self.open[0] in self.entered:
            msg = "it is gone"
            raise WorkFailed("session_lost", msg, retriable=False)
        self.entered.append(self.open[0])
        return self.open[0]


class ProcessHost:
    """A host of processes, on the loop of the test."""

    place = "session 'agent'"

    def __init__(self, gateway: Gateway, processes: AgentProcesses) -> None:
        self.gateway, self.processes = gateway, processes
        self.started: list[AgentProcess] = []
        self.boxes = OwnBoxes()

    async def open_endpoint(
        self,
        policies: Sequence[str],
        task: Mapping[str, object],
        listener: socket.socket | None = None,
    ) -> GatewayEndpoint:
        if listener is None:
            return self.gateway.open_endpoint(policies, task)
        return await self.gateway.open_endpoint_at(policies, task, listener)

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        box: AgentBox | None = None,
    ) -> AgentProcess:
        self.started.append(await self.processes.start(agent, config, url=url, key=key, box=box))
        return self.started[-1]

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        return await self.processes.imports(agent, config)

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
                for box in run.host.boxes.lent:
                    for name in DRIVERS:
                        assert box.ident not in await driver_of(name).found()
            return ended
        finally:
            await processes.close()
            await gateway.close()

    return asyncio.run(live())
