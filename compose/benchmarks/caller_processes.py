"""Raw HTTP clients in place of agents, and their starter in place of a worker's starter of agents.

The clients use sockets and JSON only, so that our own code dominates the measurement. One process,
`python -m` this, has all of them: it reads sessions from standard input, a line of JSON each, and
prints a line when one has ended, with the seconds of every call.
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from rollcall.compose.benchmarks.load import POLICY, SEEN
from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.agent_processes import AgentExit

MODULE = "rollcall.compose.benchmarks.caller_processes"
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


LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


async def converse(url: str, key: str, turns: int) -> list[float]:
    """Have a conversation of `turns` calls over one connection; return the seconds of each."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=LIMIT_BYTES)
    head = (
        f"POST {place.path}/v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
    ).encode()
    messages: list[Any] = [{"role": "user", "content": SEEN}]
    took = []
    try:
        for _ in range(turns):
            began = time.perf_counter()
            body = orjson.dumps({"model": POLICY, "messages": messages})
            writer.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
            answer = await _answer(reader)
            took.append(time.perf_counter() - began)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": SEEN}]
    finally:
        writer.close()
    return took


async def _answer(reader: asyncio.StreamReader) -> Any:
    """Read an answer. Raises ConnectionError for anything else."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if b" 200 " not in head[:16]:
        raise ConnectionError((head + body).decode(errors="replace"))
    return orjson.loads(body)


async def _session(told: Mapping[str, Any]) -> None:
    """Run a session: one parallel conversation per caller."""
    callers = (converse(told["url"], told["key"], told["turns"]) for _ in range(told["callers"]))
    said: dict[str, Any] = {"id": told["id"], "code": 0}
    try:
        said["took"] = [s for each in await asyncio.gather(*callers) for s in each]
    except (OSError, asyncio.IncompleteReadError) as error:
        said |= {"code": 1, "words": str(error)}
    sys.stdout.buffer.write(orjson.dumps(said) + b"\n")
    sys.stdout.buffer.flush()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LIMIT_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    going = set()
    while line := await reader.readline():
        task = loop.create_task(_session(orjson.loads(line)))
        going.add(task)
        task.add_done_callback(going.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
