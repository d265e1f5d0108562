"""A supervisor that imports an agent once, and forks it for every rollout.

It is started by path in the agent's own Python, and needs the standard library alone. It is a
`rollcall.sandbox.supervisor_process`, with its reaper and its packets, but its children become
agents in place of programs:

    in     {"start", "directory", "url", "key", "environment"}; for an agent that enters a box also
           the fields of `Box.entrance`, and "begins_in", a directory there
    out    {"ready"} or {"failed"} once, after the import; {"output", "piece", "size"} before an end

The supervisor reads the agents' output itself, so an agent that prints without end does not occupy
the worker's event loop.
"""

import base64
import gc
import http.client
import importlib.util
import json
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rollcall.sandbox import namespaces, process_tree
    from rollcall.sandbox import supervisor_process as supervisor_process
else:  # the agent's interpreter knows none of our packages
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import namespaces
    import process_tree
    import supervisor_process

    del sys.path[0]

HALF_BYTES = 512 * 1024
"""The number of bytes that are kept of the head of an agent's output, and of its tail."""
READ_BYTES = 256 * 1024
PIECE_BYTES = 48 * 1024
"""The output bytes in one packet: fewer than a packet has, also as base64."""
LAST_READS = 16
"""Reads of the output of an agent that has ended: more than a pipe holds."""

Frame = dict[str, Any]


class Output:
    """The head and the tail of an agent's output, and its size."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.head, self.tail, self.size = bytearray(), bytearray(), 0

    def read(self) -> bool:
        """Read a piece, if there is one; return False at the end."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        self.size += len(data)
        room = HALF_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * HALF_BYTES:  # rarely, since this moves the tail
            del self.tail[:-HALF_BYTES]
        return bool(data)

    def kept(self) -> bytes:
        """Return the head and the tail, with a note of the bytes between them."""
        tail = self.tail[-HALF_BYTES:]
        left_out = self.size - len(self.head) - len(tail)
        note = f"\n[{left_out:,} bytes left out here]\n".encode() if left_out else b""
        return bytes(self.head) + note + bytes(tail)


class Agents(supervisor_process.Children):
    """The agents of one worker, and their output."""

    ahead = False
    signals = (signal.SIGCHLD, signal.SIGTERM)

    def __init__(self, worker: socket.socket, adapter: ModuleType) -> None:
        # The adapter's imports may need what they have opened.
        kept = [each for each in open_descriptors() if each != worker.fileno()]
        super().__init__(worker, partial(be_agent, adapter), kept)
        self.outputs: dict[int, Output] = {}

    def begin(self, request: Frame, text: bytes, standard: Sequence[int]) -> None:
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            self.tell({"started": request["start"], "failed": os.strerror(error.errno or 0)})
            return
        os.set_blocking(reading, False)
        output = self.outputs[request["start"]] = Output(reading)
        self.listen(reading, lambda: self.read_output(output))
        try:
            super().begin(request, text, (*standard, writing))
        finally:
            os.close(writing)

    def read_output(self, output: Output) -> None:
        if not output.read():
            self.close_output(output)

    def close_output(self, output: Output) -> None:
        """Close the pipe of an output, once."""
        if output.descriptor in self.readers:
            self.forget_reader(output.descriptor)
            os.close(output.descriptor)

    def report_end(self, number: int, code: int) -> None:
        output = self.outputs[number]
        if output.descriptor in self.readers:
            for _ in range(LAST_READS):
                if not output.read():
                    break
        kept = output.kept()
        for first in range(0, len(kept), PIECE_BYTES):
            piece = base64.b64encode(kept[first : first + PIECE_BYTES]).decode()
            self.tell({"output": number, "piece": piece, "size": output.size})
        super().report_end(number, code)

    def forget(self, number: int) -> None:
        self.close_output(self.outputs.pop(number))
        super().forget(number)


def open_descriptors() -> list[int]:
    """Return the open descriptors of this process."""
    listed = map(int, os.listdir("/proc/self/fd"))
    return [each for each in listed if os.path.exists(f"/proc/self/fd/{each}")]


def be_agent(
    adapter: ModuleType, request: Frame, standard: Sequence[int], parent: int, complaints: int
) -> NoReturn:
    """Run the agent in a forked child, to its end.

    If the child cannot enter its box, it ends as if it was killed: its box is gone, so the agent
    has not failed.
    """
    code, settled = 1, False
    try:
        os.close(complaints)
        settle(request, parent, standard[0])
        settled = True
        run(adapter, request["url"], request["key"])
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


def settle(request: Frame, parent: int, output: int) -> None:
    """Turn a copy of the server's process into an agent's. Raises OSError."""
    process_tree.adopt_orphans()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    in_box = bool(request.get("within"))
    if in_box:
        enter(request, parent)
    directory = request["directory"]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chdir(request["begins_in"] if in_box else directory)
    os.environ.update(HOME=directory, TMPDIR=directory, PWD=directory)
    # Imports before the fork leave their bytecode for the next server; agents leave none.
    os.environ.update(request["environment"], PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    tempfile.tempdir = None
    gc.enable()


def enter(request: Frame, parent: int) -> None:
    """Continue as a process of a box, with nothing open but the output. Raises OSError."""
    supervisor_process.close_all_but(0, 1, 2)
    supervisor_process.take_place(request, parent)
    process_tree.adopt_orphans()
    namespaces.give_up_rights(request["seccomp"])
    namespaces.give_up_capabilities()
    os.umask(0o022)


def run(adapter: ModuleType, url: str, key: str) -> None:
    """Get the task, run the adapter on it, and submit its result unless that is None."""
    task = ask(url, key, "GET", "/v1/task")
    random.seed(str(task.get("seed")))  # a rebuilt rollout draws the same
    result = adapter.run(task, url, key)
    if result is not None:
        ask(url, key, "POST", "/v1/finish", {"result": str(result)})


def ask(url: str, key: str, method: str, path: str, body: Frame | None = None) -> Frame:
    """Send one request to the endpoint. Raises OSError, with the text of a refusal."""
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
    """Return the exit code that the interpreter derives from the argument of `sys.exit`."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def load(path: Path) -> ModuleType:
    """Import an adapter by its file, under a name that no other module has."""
    spec = importlib.util.spec_from_file_location(f"agent_adapter_{path.stem}", path)
    if spec is None or spec.loader is None:
        msg = f"{path} is no Python file"
        raise ImportError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def prepared(adapter: Path, options: Frame, channel: socket.socket) -> ModuleType:
    """Import the agent and report it, in the file `ready`; if that fails, end this process."""
    began = time.monotonic()
    try:
        module = load(adapter)
        module.prepare(**options)
        if hasattr(module, "REHEARSAL"):
            load(Path(__file__).with_name("rehearsal.py")).rehearse(module)
    except BaseException as error:
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"[:2000]
        channel.send(json.dumps({"failed": failed}).encode())
        os._exit(1)
    "a".encode("idna")  # every connection looks for this codec, and a container may not have it
    gc.freeze()  # a collection in a child would write to pages that all share
    threads = len(os.listdir("/proc/self/task"))
    import_s = round(time.monotonic() - began, 3)
    shown = load(Path(__file__).with_name("shown_imports.py"))
    ready = {
        "import_s": import_s,
        "threads": threads,
        "imports": shown.shown_imports(os.path.join(os.getcwd(), "imports")),
        "sources": getattr(module, "SOURCES", []),
    }
    # It may be longer than a packet.
    Path("ready").write_text(json.dumps(ready))
    channel.send(b'{"ready": true}')
    return module


def main() -> NoReturn:
    """Run `fork_server.py ADAPTER OPTIONS PARENT`; standard input is the socket to the worker."""
    adapter, options, parent = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    supervisor_process.with_reaper(channel, parent=parent)
    gc.disable()  # a collection would leave holes in pages, which children then fill and copy
    Agents(channel, prepared(adapter, options, channel)).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
