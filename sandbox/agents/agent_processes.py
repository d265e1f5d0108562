"""The agent processes of one worker: a fork server for each agent, a process for each rollout.

It runs on one event loop without threads. All processes end with the worker, however it ends, and
with the thread of that loop; an agent's child processes end with the agent (see
`rollcall.sandbox.agents.fork_server`). An agent's directory is empty at the start and removed by
`close`.
"""

import asyncio
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from rollcall.sandbox.agents.agent_box import AgentBox
from rollcall.sandbox.agents.shipped import ADAPTERS, SHIPPED, check_agent, interpreter, missing
from rollcall.sandbox.locked_folder import HeldFolder
from rollcall.sandbox.process_supervisor import ProcessSupervisor, SupervisedProcess, remove_tree
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed

SERVER = Path(__file__).parent / "fork_server.py"
LAST_WORDS_CHARS = 2000
FAILURE_KEPT_S = 5.0
"""Seconds before a failed import of an agent is tried again: an import may take seconds."""
RETIRE_S = 1.0
"""Seconds that a retired server stays idle before it ends."""

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

    def __init__(
        self, server: ProcessSupervisor, kept: SupervisedProcess, pid: int, directory: Path
    ) -> None:
        self.directory = directory
        self.pid = pid
        self._server = server
        self._kept = kept

    async def wait(self) -> AgentExit:
        """Wait until it has ended; several tasks may wait, and a wait may be cancelled."""
        code = await self._kept.wait()
        if self._kept.lost:
            await self._server.close()  # which waits until all that it started has ended
            return AgentExit(None, -code, b"its fork server has ended", 0)
        output, size = bytes(self._kept.output), self._kept.output_bytes
        if code < 0:
            return AgentExit(None, -code, output, size)
        return AgentExit(code, None, output, size)

    def kill(self) -> None:
        """Kill it and its children at once; do nothing if it has ended."""
        self._kept.kill()

    async def close(self) -> AgentExit:
        """End it, and remove its directory. May be called twice."""
        self.kill()
        ended = await self.wait()
        _remove(self.directory)
        return ended


class AgentProcesses:
    """The agents of one worker; the first start of an agent includes its import."""

    def __init__(self, home: Path, scratch: Path, *, even_broken: bool = False) -> None:
        """Use `home` for installed agents, and `scratch` for directories of rollouts.

        `even_broken`: also start agents that have failed their check, to check them.
        """
        self._home = home
        self._even_broken = even_broken
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = HeldFolder(scratch)
        self._servers: dict[str, _ForkServer] = {}
        self._retired: list[_ForkServer] = []

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
        servers = [*self._retired, *self._servers.values()]
        self._servers, self._retired = {}, []
        await asyncio.gather(*(server.close() for server in servers))
        self._scratch.remove()

    async def _server(self, agent: str, config: Mapping[str, Any]) -> "_ForkServer":
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
        if server is None or server.outdated(file):
            if server is not None:
                server.retire()
                self._retired = [each for each in (*self._retired, server) if each.alive]
            server = _ForkServer(agent, python, options, self._scratch.directory, file)
            self._servers[name] = server
            server.started.add_done_callback(lambda _: self._forget_failed(name))
        # Several starts may wait for one import: cancelling one of them must not end it.
        await asyncio.shield(server.started)
        return server

    def _forget_failed(self, name: str) -> None:
        """Forget a server whose import failed, after FAILURE_KEPT_S."""
        failed = self._servers.get(name)

        def forget() -> None:
            if self._servers.get(name) is failed:
                del self._servers[name]

        if failed is not None and failed.failed():
            asyncio.get_running_loop().call_later(FAILURE_KEPT_S, forget)


class _ForkServer:
    """A fork server, from its start to the end of its last agent."""

    def __init__(
        self, agent: str, python: Path, options: Mapping[str, str], scratch: Path, file: str
    ) -> None:
        """Start it. `file`: the digest of its function's file; empty if there is none.

        Raises WorkFailed if there is no such interpreter.
        """
        self.ready: Mapping[str, Any] = {}
        self._file = file
        self._sources = SourceFiles()
        self._scratch = scratch
        self._home = scratch / f"{agent}-{secrets.token_hex(4)}"
        self._home.mkdir()
        self._log = self._home.with_suffix(".log")
        self._supervisor = _spawned(agent, python, options, self._home, self._log)
        self._numbers = count(1)
        self._retired = False
        self._closing: asyncio.Task[None] | None = None
        self.started = asyncio.create_task(self._start(agent, options))

    @property
    def alive(self) -> bool:
        return self._supervisor.alive

    def failed(self) -> bool:
        """Return True if its import has failed."""
        started = self.started
        return started.done() and not started.cancelled() and started.exception() is not None

    def outdated(self, file: str) -> bool:
        """Return True if it cannot fork an agent for a file with this digest."""
        if self._file != file or self.started.cancelled():
            return True
        if not self.started.done() or self.failed():
            return False
        return not self.alive or self._sources.edited()

    async def _start(self, agent: str, options: Mapping[str, str]) -> None:
        """Wait until it has imported its agent. Raises WorkFailed."""
        try:
            report = await asyncio.shield(self._supervisor.ready)
            if "ready" not in report:
                await self._supervisor.close()
                name = " ".join([agent, *options.values()])
                raise _not_imported(name, report.get("failed"), self._log)
            self.ready = json.loads((self._home / "ready").read_bytes())
        except BaseException:
            await self._supervisor.close()
            raise
        self._sources = SourceFiles(self.ready["sources"])
        if self.ready["threads"] != 1:
            log.warning("agent_forks_with_threads", agent=agent, threads=self.ready["threads"])

    async def spawn(self, request: Mapping[str, object]) -> AgentProcess:
        """Fork a process; raises WorkFailed(`agent_start`)."""
        directory = self._scratch / f"{self._supervisor.pid}-{next(self._numbers)}"
        kept = self._supervisor.begin({"directory": str(directory), **request})
        kept.ended.add_done_callback(lambda _: self._end_if_idle())
        try:
            pid = await kept.begun()
        except asyncio.CancelledError:
            kept.ended.add_done_callback(lambda _: _remove(directory))
            raise
        if isinstance(pid, str):
            msg = f"no process can be forked for it: {pid}"
            raise WorkFailed(FailureCode.AGENT_START, msg, retriable=True)
        return AgentProcess(self._supervisor, kept, pid, directory)

    def retire(self) -> None:
        """End it after its last agent."""
        self._retired = True
        self.started.add_done_callback(lambda _: self._end_if_idle())

    def _end_if_idle(self) -> None:
        """End it after RETIRE_S, so that concurrent starts still reach it."""

        def end() -> None:
            if self._supervisor.idle and self.alive:
                self._closing = asyncio.create_task(self.close())

        if self._retired and self._supervisor.idle:
            asyncio.get_running_loop().call_later(RETIRE_S, end)

    async def close(self) -> None:
        """End the server and with it its agents. May be called twice."""
        self.started.cancel()
        await self._supervisor.close()
        await asyncio.gather(self.started, return_exceptions=True)


def _remove(directory: Path) -> None:
    """Remove a directory on another thread, as it may be large."""
    asyncio.get_running_loop().run_in_executor(None, remove_tree, directory)


def _spawned(
    agent: str, python: Path, options: Mapping[str, str], home: Path, log_file: Path
) -> ProcessSupervisor:
    adapter = ADAPTERS / f"{SHIPPED[agent].adapter}.py"
    command = [str(python), "-P", str(SERVER), str(adapter), json.dumps(options), str(os.getpid())]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, log_file.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                env=clean_environment(python, home),
                cwd=home,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            msg = f"agent {agent!r} cannot be started with {python}: {error.strerror}"
            raise missing(msg) from error
    return ProcessSupervisor(home, ours, process)


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


def _not_imported(name: str, failed: str | None, output: Path) -> WorkFailed:
    words = output.read_bytes()[-LAST_WORDS_CHARS:].decode(errors="replace").strip()
    why = failed or f"its process ended, saying {words!r}"
    return missing(f"agent {name} cannot be imported: {why}")


def function_file(function: str) -> Path:
    """Return the absolute path of the file in `FILE.py:NAME`."""
    return Path(function.rpartition(":")[0]).absolute()


def content_digest(file: Path | str) -> str:
    """Return the digest of a file's content; empty if it cannot be read."""
    try:
        return blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


class SourceFiles:
    """Files, and the digests of their content at one time."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._digests: Mapping[str, str] = {file: content_digest(file) for file in files}

    def edited(self) -> bool:
        """Return True if the content of any file has changed, or a file is gone."""
        return any(content_digest(file) != was for file, was in self._digests.items())
