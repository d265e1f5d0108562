"""The agent processes of one worker: a fork server for each agent, a process for each rollout.

It runs on one event loop without threads. All processes end with the worker, however it ends, and
with the thread of that loop; an agent's child processes end with the agent (see
`rollcall.sandbox.agents.fork_server`). An agent's directory is empty at the start and removed by
`close`.
"""

import asyncio
import base64
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import structlog

from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.agent_sources import SourceFiles, content_digest, function_file
from rollcall.sandbox.agents.shipped import ADAPTERS, SHIPPED, check_agent, interpreter, missing
from rollcall.sandbox.locked_folder import hold, locked, remove_unless_held
from rollcall.schemas.errors import Refused, WorkFailed

SERVER = Path(__file__).parent / "fork_server.py"
LAST_WORDS_CHARS = 2000
FAILURE_KEPT_S = 5.0
"""Seconds before a failed import of an agent is tried again: an import may take seconds."""
CLOSE_S = 5.0
RETIRE_S = 1.0
"""Seconds that a retired server stays idle before it ends."""

Value = TypeVar("Value")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentExit:
    """The exit of an agent's process, and its output."""

    code: int | None
    """The exit code; None if a signal ended it."""
    signal: int | None
    output: bytes
    """Standard output and error, interleaved; the head and the tail if it is more than 1 MiB."""
    output_bytes: int
    """The size of the whole output."""

    @property
    def last_words(self) -> str:
        return self.output[-4 * LAST_WORDS_CHARS :].decode(errors="replace")[-LAST_WORDS_CHARS:]


class AgentProcess:
    """The agent process of one rollout."""

    def __init__(self, server: "_ForkServerProcess", ident: int, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        self.directory = directory
        self.pid = 0
        self.abandoned = False
        """True if its start was cancelled: its caller will not close it."""
        self._server = server
        self._ident = ident
        self._started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[AgentExit] = loop.create_future()

    async def wait(self) -> AgentExit:
        """Wait until it has ended; several tasks may wait, and a wait may be cancelled."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill it and its children at once; do nothing if it has ended."""
        if not self._ended.done():
            self._server.tell(op="kill", id=self._ident)

    async def close(self) -> AgentExit:
        """End it, and remove its directory. May be called twice."""
        self.kill()
        ended = await self.wait()
        self._server.tell(op="remove", id=self._ident)
        return ended

    def heard(self, frame: Mapping[str, Any]) -> None:
        """Handle a frame of the fork server about it."""
        if "pid" in frame:
            self.pid = frame["pid"]
            _settle(self._started, self.pid)
        elif "refused" in frame:
            message = f"no process can be forked for it: {frame['refused']}"
            self._started.set_exception(WorkFailed("agent_start", message, retriable=True))
            self._ended.cancel()
        else:
            self._end(
                frame["code"],
                frame["signal"],
                base64.b64decode(frame["output"]),
                frame["output_bytes"],
            )

    def orphaned(self) -> None:
        """Record that its fork server has ended, and it with that."""
        self._end(None, 9, b"its fork server has ended", 0)

    def _end(self, code: int | None, signal: int | None, output: bytes, size: int) -> None:
        _settle(self._started, 0)
        _settle(self._ended, AgentExit(code, signal, output, size))

    async def started(self) -> "AgentProcess":
        """Wait until it has been forked. Raises WorkFailed if that fails."""
        await asyncio.shield(self._started)
        return self


def _settle(future: "asyncio.Future[Value]", value: Value) -> None:
    if not future.done():
        future.set_result(value)


class AgentProcesses:
    """The agents of one worker; the first start of an agent includes its import."""

    def __init__(self, home: Path, scratch: Path, *, even_broken: bool = False) -> None:
        """Use `home` for installed agents, and `scratch` for directories of rollouts.

        `even_broken`: also start agents that have failed their check, to check them.
        """
        self._home = home
        self._even_broken = even_broken
        self._scratch = _Scratch(scratch)
        self._servers: dict[str, _StartedServer] = {}
        self._retired: list[asyncio.Task[_ForkServerProcess]] = []

    async def start(
        self,
        agent: str,
        config: Mapping[str, Any],
        *,
        url: str,
        key: str,
        environment: Mapping[str, str] | None = None,
        box: AgentBox | None = None,
    ) -> AgentProcess:
        """Start a rollout's agent with the endpoint `url` and its `key`; in a box, if one is given.

        `config` is that of its rollout, `environment` is added to the fixed one. Raises WorkFailed:
        `agent_missing`, or `agent_start` if the process cannot be forked.
        """
        server = await self._server(agent, config)
        return await server.spawn(
            {
                **(box.order() if box else {}),
                "url": url,
                "key": key,
                "environment": {
                    "ROLLCALL_URL": url,
                    "ROLLCALL_KEY": key,
                    "OPENAI_BASE_URL": f"{url}/v1",
                    "OPENAI_API_KEY": key,
                    "ANTHROPIC_BASE_URL": url,
                    "ANTHROPIC_API_KEY": key,
                    **(environment or {}),
                },
            }
        )

    async def prepare(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Import an agent without starting one; return its fork server's report.

        It has `import_s` in seconds, and `threads`, which should be one. Raises WorkFailed.
        """
        return (await self._server(agent, config)).ready

    async def imports(self, agent: str, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the host paths of an agent's modules and interpreter, by their path in its box.

        Raises WorkFailed.
        """
        found: Mapping[str, str] = (await self.prepare(agent, config))["imports"]
        return found

    async def close(self) -> None:
        """End all processes and remove their files. May be called twice."""
        servers = [*self._retired, *(server.task for server in self._servers.values())]
        self._servers, self._retired = {}, []
        for task in servers:
            task.cancel()
        for ended in await asyncio.gather(*servers, return_exceptions=True):
            if isinstance(ended, _ForkServerProcess):
                await ended.close()
        self._scratch.remove()

    async def _server(self, agent: str, config: Mapping[str, Any]) -> "_ForkServerProcess":
        try:
            check_agent({**config, "agent": agent})
        except Refused as error:  # the request was not checked when it was submitted
            raise missing(str(error)) from error
        python = interpreter(
            self._home, agent, config.get("python", ""), even_broken=self._even_broken
        )
        options = _options(agent, config)
        name = json.dumps([agent, str(python), options])
        file = content_digest(function_file(options["function"])) if options else ""
        server = self._servers.get(name)
        if server is not None and server.outdated(file):
            self._retire(server.task)
            server = None
        if server is None:
            starting = _ForkServerProcess.start(agent, python, options, self._scratch.directory)
            server = self._servers[name] = _StartedServer(asyncio.create_task(starting), file)
            server.task.add_done_callback(lambda done: self._forget_failed(name, done))
        # Several starts may wait for one import: cancelling one of them must not end it.
        return await asyncio.shield(server.task)

    def _retire(self, task: "asyncio.Task[_ForkServerProcess]") -> None:
        """Fork no more agents from a server; it ends after its last agent."""

        def retire(started: "asyncio.Task[_ForkServerProcess]") -> None:
            if not started.cancelled() and not started.exception():
                started.result().retire()

        self._retired = [each for each in self._retired if not (each.done() and _is_over(each))]
        self._retired.append(task)
        task.add_done_callback(retire)

    def _forget_failed(self, name: str, task: "asyncio.Task[_ForkServerProcess]") -> None:
        def forget() -> None:
            server = self._servers.get(name)
            if server is not None and server.task is task:
                del self._servers[name]

        if not task.cancelled() and task.exception():
            asyncio.get_running_loop().call_later(FAILURE_KEPT_S, forget)


@dataclass(frozen=True, slots=True)
class _StartedServer:
    """A fork server, or its start, and the digest of its agent's file."""

    task: "asyncio.Task[_ForkServerProcess]"
    file: str
    """The digest of its function's file before the import; empty if there is none."""

    def outdated(self, file: str) -> bool:
        """Return True if it cannot fork an agent for a file with this digest."""
        if self.file != file or self.task.cancelled():
            return True
        if not self.task.done() or self.task.exception():
            return False
        return _is_over(self.task) or self.task.result().sources.edited()


def _is_over(started: "asyncio.Task[_ForkServerProcess]") -> bool:
    return started.cancelled() or bool(started.exception()) or not started.result().alive


class _ForkServerProcess:
    """The worker's end of one fork server."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        scratch: Path,
    ) -> None:
        self.alive = True
        self.ready: Mapping[str, Any] = {}
        self.sources = SourceFiles()
        self._process = process
        self._reader = reader
        self._writer = writer
        self._scratch = scratch
        self._agents: dict[int, AgentProcess] = {}
        self._numbers = count(1)
        self._listener: asyncio.Task[None] | None = None
        self._retired = False

    @classmethod
    async def start(
        cls, agent: str, python: Path, options: Mapping[str, str], scratch: Path
    ) -> "_ForkServerProcess":
        """Start a fork server and wait until it has imported its agent; raises WorkFailed."""
        home = scratch / f"{agent}-{secrets.token_hex(4)}"
        home.mkdir()
        ours, theirs = socket.socketpair()
        try:
            process = _spawned(agent, python, options, home, theirs)
        except WorkFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        server = cls(process, reader, writer, scratch)
        try:
            first = await server._frame()
        except BaseException:
            await server.close()
            raise
        if first is None or "failed" in first:
            await server.close()
            raise _not_imported(agent, options, first, home / "log")
        server.ready = first["ready"]
        server.sources = SourceFiles(server.ready["sources"])
        if server.ready["threads"] != 1:
            log.warning("agent_forks_with_threads", agent=agent, threads=server.ready["threads"])
        server._listener = asyncio.create_task(server._listen())
        return server

    async def spawn(self, order: Mapping[str, object]) -> AgentProcess:
        """Fork a process; raises WorkFailed(`agent_start`)."""
        if not self.alive:
            msg = "its fork server has just ended"
            raise WorkFailed("agent_start", msg, retriable=True)
        ident = next(self._numbers)
        directory = self._scratch / f"{self._process.pid}-{ident}"
        agent = self._agents[ident] = AgentProcess(self, ident, directory)
        self.tell(**{"op": "spawn", "id": ident, "directory": str(directory), **order})
        try:
            return await agent.started()
        except asyncio.CancelledError:
            agent.abandoned = True
            agent.kill()
            raise

    def tell(self, **order: object) -> None:
        """Write one frame; do nothing if the server has ended."""
        if self.alive:
            data = json.dumps(order).encode()
            self._writer.write(struct.pack(">I", len(data)) + data)

    def retire(self) -> None:
        """End it after its last agent."""
        self._retired = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        """End it after RETIRE_S, so that concurrent starts and orders to remove still reach it."""

        def end() -> None:
            if not self._agents and self.alive:
                self.alive = False
                self._writer.close()

        if self._retired and not self._agents:
            asyncio.get_running_loop().call_later(RETIRE_S, end)

    async def close(self) -> None:
        """End the server and with it its agents. May be called twice."""
        self.alive = False  # its agents end with it, so further orders are dropped
        self._writer.close()
        if self._listener is not None:
            await self._listener
        else:
            await self._gone()

    async def _listen(self) -> None:
        while (frame := await self._frame()) is not None:
            agent = self._agents[frame["id"]]
            agent.heard(frame)
            if "pid" not in frame:
                del self._agents[frame["id"]]
                if agent.abandoned:
                    self.tell(op="remove", id=frame["id"])
                self._end_if_idle()
        await self._gone()

    async def _frame(self) -> Mapping[str, Any] | None:
        """Read the next frame; None at the end."""
        try:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            frame: Mapping[str, Any] = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return frame

    async def _gone(self) -> None:
        """Wait until no process of its tree is left."""
        self.alive = False
        self._writer.close()
        await _ended(self._process)
        for agent in self._agents.values():
            agent.orphaned()
        self._agents.clear()


def _spawned(
    agent: str, python: Path, options: Mapping[str, str], home: Path, channel: socket.socket
) -> subprocess.Popen[bytes]:
    adapter = ADAPTERS / f"{SHIPPED[agent].adapter}.py"
    command = [str(python), "-P", str(SERVER), str(adapter), json.dumps(options), str(os.getpid())]
    with (home / "log").open("wb") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=channel.fileno(),
                stdout=output,
                stderr=output,
                env=clean_environment(python, home),
                cwd=home,
                start_new_session=True,
            )
        except OSError as error:
            msg = f"agent {agent!r} cannot be started with {python}: {error.strerror}"
            raise missing(msg) from error


def clean_environment(python: Path, home: Path) -> dict[str, str]:
    """Return the environment of every agent, the same on all workers except for directories."""
    return {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        # Libraries that would start threads when they are imported, before the fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def _options(agent: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of an adapter's `prepare`: the function whose file it imports."""
    if agent != "python":
        return {}
    file, _, name = config["function"].rpartition(":")
    return {"function": f"{Path(file).absolute()}:{name}"}


def _not_imported(
    agent: str, options: Mapping[str, str], first: Mapping[str, Any] | None, output: Path
) -> WorkFailed:
    words = output.read_bytes()[-LAST_WORDS_CHARS:].decode(errors="replace").strip()
    why = first["failed"] if first else f"its process ended, saying {words!r}"
    what = " ".join([agent, *options.values()])
    return missing(f"agent {what} cannot be imported: {why}")


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process; one that takes too long to end is killed."""
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(process.pid)
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(CLOSE_S):
            await ended.wait()
    except TimeoutError:
        process.kill()
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.wait()


class _Scratch:
    """A folder of this worker; the folders of killed workers beside it are removed."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with locked(parent):  # so that no other worker removes ours before it is held
            for left in parent.iterdir():
                remove_unless_held(left)
            self.directory = parent / secrets.token_hex(8)
            self.directory.mkdir(mode=0o700)
            self._lock = hold(self.directory)

    def remove(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1
