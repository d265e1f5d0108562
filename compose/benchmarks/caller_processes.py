"""The starter of raw callers, in place of a worker's starter of agents' processes."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.agent_processes import AgentExit

MODULE = "rollcall.compose.benchmarks.raw_callers"
LIMIT_BYTES = 1 << 20


class Caller:
    """One session's callers; implements `rollcall.sandbox.host.Process`."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[AgentExit] = asyncio.get_running_loop().create_future()

    async def wait(self) -> AgentExit:
        """Wait until its last call was answered."""
        return await asyncio.shield(self.ended)

    async def close(self) -> AgentExit:
        """Wait for its end; its line is closed before, so it ends by itself."""
        return await self.wait()


class CallerProcesses:
    """One process with the callers of all sessions; `took` gets the seconds of their calls."""

    def __init__(self, took: Callable[[list[float]], object] = lambda seconds: None) -> None:
        self._took = took
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._going: dict[int, Caller] = {}
        self._begun = 0

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        box: AgentBox | None = None,
    ) -> Caller:
        """Start the callers; `config` has their number `callers`, and the `turns` of each."""
        del agent, box
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        process = await asyncio.shield(self._starting)
        caller, number = Caller(), self._begun
        self._going[number], self._begun = caller, number + 1
        told = {"id": number, "url": url, "key": key}
        told |= {name: config[name] for name in ("turns", "callers")}
        assert process.stdin is not None
        process.stdin.write(orjson.dumps(told) + b"\n")
        return caller

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return nothing, as callers do not run in boxes."""
        del agent, config
        return {}

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LIMIT_BYTES,
        )
        assert process.stdout is not None
        self._listening = asyncio.create_task(self._listen(process.stdout))
        return process

    async def _listen(self, said: asyncio.StreamReader) -> None:
        while line := await said.readline():
            told = orjson.loads(line)
            words = told.get("words", "").encode()
            self._took(told.get("took", []))
            ended = AgentExit(told["code"], None, words, len(words))
            self._going.pop(told["id"]).ended.set_result(ended)

    async def close(self) -> None:
        """End the process."""
        if self._starting is None:
            return
        process = await self._starting
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if self._listening is not None:
            await self._listening
