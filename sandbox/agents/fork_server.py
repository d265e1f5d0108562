"""Imports an agent once and forks it for every rollout; started by path, in the agent's own Python.

    worker == socket == server --fork--> agent, in a session of its own --> whatever it starts
       +--> reaper --fork--> server

It needs the standard library alone, and nobody of this tree outlives the worker. The agent adopts
what its children leave behind (PR_SET_CHILD_SUBREAPER), so whoever becomes the server's own child
without having been forked by it belongs to an agent that has ended: it is killed at sight. When the
worker dies the server reads the end of its socket; when the server dies the reaper, a subreaper
too, ends what is left. On the socket go frames: a length of four bytes, then JSON.

    to us      {"op": "spawn", "id", "directory", "url", "key", "environment"}; for one that is to
               enter a box also "box", what `Box.entrance` says, and "begins_in", a directory there
               {"op": "kill", "id"}, {"op": "remove", "id"} removes the directory of one that ended
    from us    {"ready": ...} or {"failed": ...} once; {"id", "pid"}; {"id", "refused"}
               {"id", "code", "signal", "output", "output_bytes"}
"""

import base64
import gc
import http.client
import importlib.util
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rollcall.sandbox import namespaces, process_tree, program_groups
    from rollcall.sandbox import supervisor_process as supervisor_process
else:  # the agent's interpreter knows none of our packages
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import namespaces
    import process_tree
    import program_groups
    import supervisor_process

    del sys.path[0]

HALF_BYTES = 512 * 1024
"""So much is kept of the head of an agent's output, and so much of its tail."""
READ_BYTES = 256 * 1024
OPEN_FILES = 1 << 16
LAST_READS = 16
"""What an agent that has ended left in its pipe is far less."""

Frame = dict[str, Any]


class Output:
    """What an agent prints: the head and the tail of it, and how much it was."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.head, self.tail, self.size = bytearray(), bytearray(), 0

    def read(self) -> bool:
        """Take in what is there, a piece of it; False where there is nothing now, or no more."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        self.size += len(data)
        room = HALF_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * HALF_BYTES:  # rarely, as what is kept moves
            del self.tail[:-HALF_BYTES]
        return bool(data)

    def kept(self) -> bytes:
        tail = self.tail[-HALF_BYTES:]
        left_out = self.size - len(self.head) - len(tail)
        said = f"\n[{left_out:,} bytes left out here]\n".encode() if left_out else b""
        return bytes(self.head) + said + bytes(tail)


class Agent:
    """A forked agent that has not ended, seen from the server."""

    def __init__(self, ident: int, pid: int, output: Output, box: Frame | None) -> None:
        self.ident = ident
        self.pid = pid
        self.output = output
        self.box = box
        self.group = program_groups.group_of(box.get("group", ""), pid) if box else ""

    def kill(self) -> None:
        """Kill it, and in a box also all that it has started."""
        if self.box and not self.group:
            process_tree.kill_tree(self.pid)
            return
        if self.group:
            program_groups.kill(self.group)
        os.kill(self.pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """Kill what it left in its box.

        It is in the agent's control group. Without one the box's first process has adopted it, and
        starts nothing itself.
        """
        if self.group:
            program_groups.end(self.group)
        elif self.box is not None:
            first = self.box["within"]
            with suppress(OSError):
                if os.stat(f"/proc/{first}/ns/mnt").st_ino == self.box["mounts"]:
                    for stray in process_tree.children(first):
                        process_tree.kill_tree(stray)


class ForkServer:
    """Forks on demand, drains what is printed, collects what ends. One thread, ours alone."""

    def __init__(self, channel: socket.socket, adapter: ModuleType) -> None:
        self.channel = channel
        self.adapter = adapter
        self.agents: dict[int, Agent] = {}
        self.directories: dict[int, str] = {}
        self.helpers = set(process_tree.children(os.getpid()))
        """Processes that the adapter has started, or that we need ourselves."""
        self.unread = b""
        self.poll = select.poll()
        self.readers: dict[int, Callable[[], object]] = {}
        self.wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.woken = woken
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._listen(self.wake, lambda: os.read(self.wake, 4096))
        self._listen(channel.fileno(), self._hear)

    def serve(self) -> NoReturn:
        """Until the worker has gone."""
        while True:
            for descriptor, _ in self.poll.poll():
                read = self.readers.get(descriptor)
                if read is not None:
                    read()
            self._collect()

    def _listen(self, descriptor: int, read: Callable[[], object]) -> None:
        self.readers[descriptor] = read
        self.poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        if self.readers.pop(descriptor, None):
            self.poll.unregister(descriptor)
            os.close(descriptor)

    def _drain(self, output: Output) -> None:
        if not output.read():
            self._forget(output.descriptor)

    def _hear(self) -> None:
        try:
            data = self.channel.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            process_tree.end_children()
            os._exit(0)
        self.unread += data
        while len(self.unread) >= 4:
            (length,) = struct.unpack(">I", self.unread[:4])
            if len(self.unread) < 4 + length:
                return
            order, self.unread = self.unread[4 : 4 + length], self.unread[4 + length :]
            self._obey(json.loads(order))

    def _obey(self, order: Frame) -> None:
        match order["op"]:
            case "spawn":
                self._spawn(order)
            case "kill":
                for agent in self.agents.values():
                    if agent.ident == order["id"]:
                        agent.kill()
            case "remove":
                self._remove(self.directories.pop(order["id"], ""))

    def _spawn(self, order: Frame) -> None:
        parent, ends = os.getpid(), tuple[int, ...]()
        try:
            reading, writing = ends = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            tell(self.channel, {"id": order["id"], "refused": os.strerror(error.errno or 0)})
            return
        if pid == 0:
            be_agent(self.adapter, order, parent, writing, [*self.readers, self.woken, reading])
        os.close(writing)
        os.set_blocking(reading, False)
        self.agents[pid] = agent = Agent(order["id"], pid, Output(reading), order.get("box"))
        if agent.box is None:  # what it writes in a box ends with the box
            self.directories[agent.ident] = order["directory"]
        self._listen(reading, lambda: self._drain(agent.output))
        tell(self.channel, {"id": order["id"], "pid": pid})

    def _remove(self, directory: str) -> None:
        """In a process of its own, as a directory may be large."""
        if not directory:
            return
        pid = os.fork()
        if pid == 0:
            try:
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os._exit(0)
        self.helpers.add(pid)

    def _collect(self) -> None:
        """Tell who has ended, and end what it has left behind."""
        while (pid := ended_child()) is not None:
            agent = self.agents.pop(pid, None)
            if agent is not None:
                kill_group(pid)  # before it is collected: until then nobody else has its number
            _, status = os.waitpid(pid, 0)
            self.helpers.discard(pid)
            for stray in (
                set(process_tree.children(os.getpid())) - self.agents.keys() - self.helpers
            ):
                os.kill(stray, signal.SIGKILL)
            if agent is not None:
                agent.end_orphans()
                self._tell_end(agent, os.waitstatus_to_exitcode(status))

    def _tell_end(self, agent: Agent, code: int) -> None:
        output = agent.output
        if output.descriptor in self.readers:
            for _ in range(LAST_READS):
                if not output.read():
                    break
            self._forget(output.descriptor)
        how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
        kept = base64.b64encode(output.kept()).decode()
        tell(self.channel, {"id": agent.ident, **how, "output": kept, "output_bytes": output.size})


def ended_child() -> int | None:
    """A child that is dead and not collected."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def kill_group(leader: int) -> None:
    """Kill who is in an agent's process group; there is none where it had not come so far."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def tell(channel: socket.socket, frame: Frame) -> None:
    """Write a frame; what a worker that has gone would have read is lost with it."""
    data = json.dumps(frame).encode()
    with suppress(ConnectionError):
        channel.sendall(struct.pack(">I", len(data)) + data)


def be_agent(
    adapter: ModuleType, order: Frame, parent: int, output: int, ours: list[int]
) -> NoReturn:
    """What the forked child does, to its end; it must not return into the server's loop.

    One that cannot be made an agent of, since its box is gone, say, ends as one that was killed:
    no agent has failed at anything.
    """
    code, settled = 1, False
    try:
        settle(order, parent, output, ours)
        settled = True
        run(adapter, order["url"], order["key"])
        code = 0
    except SystemExit as ended:
        code = exit_code(ended)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        if not settled:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code)


def settle(order: Frame, parent: int, output: int, ours: list[int]) -> None:
    """Make an agent's process of a copy of the server's."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    process_tree.signal_on_parent_death(parent, signal.SIGKILL)
    process_tree.adopt_orphans()
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in (*ours, output):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "box" in order:
        enter(order["box"], parent)
    directory = order["directory"]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chdir(order["begins_in"] if "box" in order else directory)
    os.environ.update(HOME=directory, TMPDIR=directory, PWD=directory)
    # What is imported before the fork leaves its bytecode for the next server; agents leave none.
    os.environ.update(order["environment"], PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    tempfile.tempdir = None
    gc.enable()


def enter(box: Frame, parent: int) -> None:
    """Go on as a process of a box, with nothing open but what it prints to. Raises OSError."""
    os.closerange(3, OPEN_FILES)
    supervisor_process.take_place(box, parent)
    process_tree.adopt_orphans()
    namespaces.give_up_rights(box["seccomp"])
    namespaces.give_up_capabilities()
    os.umask(0o022)


def run(adapter: ModuleType, url: str, key: str) -> None:
    """Ask for the task, do it, hand in what the adapter returns unless that is None."""
    task = ask(url, key, "GET", "/v1/task")
    random.seed(str(task.get("seed")))  # a rollout that is lived again draws the same
    result = adapter.run(task, url, key)
    if result is not None:
        ask(url, key, "POST", "/v1/finish", {"result": str(result)})


def ask(url: str, key: str, method: str, path: str, body: Frame | None = None) -> Frame:
    """One request to the endpoint; raises OSError, with the words of a refusal."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body)
    connection.request(method, where.path.rstrip("/") + path, data, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        msg = f"{method} {path} was answered {answer.status}: {text[:500].decode(errors='replace')}"
        raise OSError(msg)
    found: Frame = json.loads(text)
    return found


def exit_code(ended: SystemExit) -> int:
    """As the interpreter makes it of what `sys.exit` was given."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def load(path: Path) -> ModuleType:
    """Import an adapter by its file, under a name that is nobody's."""
    spec = importlib.util.spec_from_file_location(f"agent_adapter_{path.stem}", path)
    if spec is None or spec.loader is None:
        msg = f"{path} is no Python file"
        raise ImportError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def prepared(adapter: Path, options: Frame, channel: socket.socket) -> ModuleType:
    """Import the agent and say how that went; ends this process where it went wrong."""
    began = time.monotonic()
    try:
        module = load(adapter)
        module.prepare(**options)
        if hasattr(module, "REHEARSAL"):
            load(Path(__file__).with_name("rehearsal.py")).rehearse(module)
    except BaseException as error:
        traceback.print_exc()
        tell(channel, {"failed": f"{type(error).__name__}: {error}"[:2000]})
        os._exit(1)
    "a".encode("idna")  # every connection looks for this codec, and a container may not have it
    gc.freeze()  # a collection in a child would write to pages that all share
    threads = len(os.listdir("/proc/self/task"))
    import_s = round(time.monotonic() - began, 3)
    shown = load(Path(__file__).with_name("shown_imports.py"))
    ready = {
        "import_s": import_s, "threads": threads,
        "imports": shown.shown_imports(os.path.join(os.getcwd(), "imports")),
        "sources": getattr(module, "SOURCES", []),
    }  # fmt: skip
    tell(channel, {"ready": ready})
    return module


def main() -> NoReturn:
    """fork_server.py ADAPTER OPTIONS PARENT; its standard input is the socket to the worker."""
    adapter, options, parent = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    process_tree.adopt_orphans()
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    reaper = os.getpid()
    server = os.fork()
    if server:
        channel.close()
        process_tree.end_on_sigterm()
        process_tree.signal_on_parent_death(parent, signal.SIGTERM)
        os._exit(process_tree.guard(server))
    process_tree.adopt_orphans()
    process_tree.signal_on_parent_death(reaper, signal.SIGTERM)
    gc.disable()  # a page that is collected on has holes, which children would fill with their own
    module = prepared(adapter, options, channel)
    process_tree.end_on_sigterm()
    ForkServer(channel, module).serve()


if __name__ == "__main__":
    main()
