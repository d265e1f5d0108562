"""Private memory of one mini-swe-agent, with a hundred of them waiting for their first answer.

They are forked as a worker forks them, and their endpoint does not answer. Private memory is not
shared with another process (USS): it is the cost of one more agent. The ceiling is an interpreter
without imports, forked in the same way and waiting for its task.
"""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.sandbox.agents.agent_processes import AgentProcess, AgentProcesses

AGENT = "mini-swe-agent"
LIVE = 100
PATIENCE_S = 180.0
TASK = {"prompt": "Look around.", "system": "", "observation": "", "limits": {}, "config": {}}
EMPTY = "def run(task, url, key):\n    pass\n"


class SilentEndpoint:
    """An endpoint that returns the task, if it has one, and answers no other request."""

    def __init__(self, task: Mapping[str, Any] | None) -> None:
        self.task = task
        self.url = ""
        self.waiting = 0
        self._over = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["SilentEndpoint"]:
        """Listen on a free port of the loopback."""
        server = web.Server(self._answer, access_log=None)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server, "127.0.0.1", 0, backlog=LIVE)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._over.set()
            listener.close()
            await server.shutdown()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if self.task is not None and request.path == "/v1/task":
            return web.json_response(self.task)
        self.waiting += 1
        await self._over.wait()
        return web.Response(status=503)


def private(settings: Settings, *, live: int = LIVE) -> Figure:
    """Measure bytes of private memory per agent; raises WorkFailed if it is not installed."""
    return asyncio.run(_private(settings, live))


async def _private(settings: Settings, live: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY)
        processes = AgentProcesses(settings.installed_agents(), Path(folder) / "agents")
        try:
            ours = await sizes(processes, {"agent": AGENT}, TASK, live)
            function = {"agent": "python", "function": f"{empty}:run"}
            bare = await sizes(processes, function, None, live)
        finally:
            await processes.close()
    note = (
        f"{live} live, each waiting for its first answer: "
        f"median {statistics.median(ours) / 1e6:.1f} MB, largest {max(ours) / 1e6:.1f} MB"
    )
    figures = statistics.mean(ours), "bytes", statistics.mean(bare)
    return Figure(*figures, lower_is_better=True, notes=(note,))


async def sizes(
    processes: AgentProcesses, config: Mapping[str, Any], task: Mapping[str, Any] | None, live: int
) -> list[int]:
    """Return the private bytes of `live` waiting agents."""
    agent = config["agent"]
    await processes.prepare(agent, config)
    async with SilentEndpoint(task).serving() as endpoint:
        begun = [
            await processes.start(agent, config, url=endpoint.url, key="bench") for _ in range(live)
        ]
        try:
            await _until_waiting(endpoint, begun)
            return [private_bytes(process.pid) for process in begun]
        finally:
            await asyncio.gather(*(process.close() for process in begun))


async def _until_waiting(endpoint: SilentEndpoint, begun: list[AgentProcess]) -> None:
    """Wait until all wait for an answer; raises ServicesError if one of them ends instead."""
    ends = [asyncio.create_task(process.wait()) for process in begun]
    until = asyncio.get_running_loop().time() + PATIENCE_S
    try:
        while endpoint.waiting < len(begun):
            ended, _ = await asyncio.wait(ends, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            if ended or asyncio.get_running_loop().time() > until:
                words = "".join(end.result().last_words for end in ended)
                msg = f"{endpoint.waiting} of {len(begun)} agents wait for an answer; {words}"
                raise ServicesError(msg)
    finally:
        for end in ends:
            end.cancel()


def private_bytes(pid: int) -> int:
    """Return the bytes that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
