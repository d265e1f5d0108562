"""The services of an environments worker for the sessions that wait in its event loop."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.sessions import SessionPlace
from rollcall.schemas.claims import Objects
from rollcall.schemas.errors import FailureCode, Unavailable, WorkFailed

if TYPE_CHECKING:
    from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
    from rollcall.consumers.environments.gateway.gateway import Gateway
    from rollcall.consumers.environments.worker_boxes import SessionBoxes, WorkerBoxes
    from rollcall.sandbox.agents.agent_box import AgentBox
    from rollcall.sandbox.host import Process, Processes


class WorkerHosts:
    """Makes the host of each session.

    The gateway, with its port, and the processes are made once a session asks for one, so a
    worker of plain environments has neither. Everything but construction runs on the event loop.
    """

    def __init__(
        self,
        loop_thread: EventLoopThread,
        *,
        listen: Callable[[], socket.socket],
        processes: Callable[[], "Processes"],
        objects: Objects | None = None,
        boxes: "WorkerBoxes | None" = None,
    ) -> None:
        self.loop_thread = loop_thread
        self.objects = objects
        self.boxes = boxes
        self._listen = listen
        self._make_processes = processes
        self._opening: asyncio.Task[Gateway] | None = None
        self._processes: Processes | None = None

    def __call__(self, place: str) -> "SessionHost":
        """Return the host of the session of that name."""
        return SessionHost(place, self)

    def serve(self) -> None:
        """Open the gateway now, even if no session needs it; from any thread."""
        self.loop_thread.call(self._begun)

    async def gateway(self) -> "Gateway":
        """Return the worker's one gateway. Raises Refused if there is no port for it."""
        return await asyncio.shield(self._begun())

    def _begun(self) -> "asyncio.Task[Gateway]":
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.create_task(self._open(), name="gateway")
        return self._opening

    async def _open(self) -> "Gateway":
        from rollcall.consumers.environments.gateway.gateway import Gateway

        gateway = Gateway(self._listen())
        self.loop_thread.at_close(gateway.close)
        await gateway.start()
        return gateway

    def processes(self) -> "Processes":
        """Return the processes of all agents of this worker."""
        if self._processes is None:
            self._processes = self._make_processes()
            self.loop_thread.at_close(self._processes.close)
        return self._processes


@dataclass(slots=True)
class SessionHost:
    """Implements `rollcall.sandbox.host.Host` for one session."""

    place: str
    hosts: WorkerHosts

    @property
    def boxes(self) -> "SessionBoxes":
        """The boxes of the session. Raises WorkFailed(`box_unavailable`) if its worker has none."""
        if self.hosts.boxes is None:
            msg = f"{self.place} wants a box, and its worker has no pool of them"
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True)
        whose = self.place if isinstance(self.place, SessionPlace) else SessionPlace("")
        return self.hosts.boxes.of(whose.rollout_id, whose.attempt, whose.journal)

    async def open_endpoint(
        self,
        policies: Sequence[str],
        task: Mapping[str, object],
        listener: socket.socket | None = None,
    ) -> "GatewayEndpoint":
        """Open an endpoint for these policies. Raises Refused if the gateway has no port."""
        gateway = await self.hosts.gateway()
        if listener is None:
            return gateway.open_endpoint(policies, task)
        return await gateway.open_endpoint_at(policies, task, listener)

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        box: "AgentBox | None" = None,
    ) -> "Process":
        """Start an agent's process, which calls `url` with `key`. Raises WorkFailed."""
        return await self.hosts.processes().start(agent, config, url=url, key=key, box=box)

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the agent's modules to mount in its box, by place. Raises WorkFailed."""
        return await self.hosts.processes().imports(agent, config)

    def keep(self, name: str, content: bytes) -> str:
        """Put an object into the store; return its name there. Raises Unavailable."""
        objects = self.hosts.objects
        if objects is None:
            msg = f"{name} of {self.place} is not kept: there is no object store; set objects.url"
            raise Unavailable(msg)
        return objects.put(content).uri
