"""A docker engine for one run: with its own data, socket and containers, and no firewall rules.

Other engines are never affected. Its image consists of the few programs of this host that a shell
needs; no image is downloaded.
"""

import io
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rollcall.compose.extras import require
from rollcall.compose.processes import ChildProcess, end, spawn, wait_until
from rollcall.compose.services.service_errors import ServicesError
from rollcall.sandbox.boxes.docker_driver import LABEL
from rollcall.sandbox.process_tree import kill_tree
from rollcall.schemas.errors import Refused

PROGRAM, HOLDER = "dockerd", "containerd"
"""The engine, and the daemon that holds its containers while it is down."""
IMAGE = "rollcall-chaos"
PROGRAMS = ("sh", "env", "sleep", "cat", "true")
"""The host's programs in the image, with the libraries that they load."""
LIBRARY = re.compile(r"(/\S+) \(0x")
READY_S = 60.0
GRACE_S = 20.0
ANSWER_S = 2.0
LOOK_EVERY_S = 0.5


def refuse_no_engine() -> None:
    """Raise Refused if no engine can be started here."""
    for program in (PROGRAM, HOLDER):
        if shutil.which(program) is None:
            msg = (
                f"there is no engine to kill: {program} is not installed; leave `engine` out of "
                "--kill, or `apt-get install docker.io`"
            )
            raise Refused(msg)
    if os.getuid() != 0:
        msg = "there is no engine to kill: only root starts one; leave `engine` out of --kill"
        raise Refused(msg)
    require("docker")


class OwnEngine:
    """An engine: call `start` once, then `kill` and `begin` in turns, and `close`."""

    def __init__(self, log: Path) -> None:
        # Not below the run's directory: a socket's path may have at most 107 characters
        self.directory = Path(tempfile.mkdtemp(prefix="rollcall-engine-"))
        self.host = f"unix://{self.directory}/docker.sock"
        self._log = log
        self._process: ChildProcess | None = None
        self._holder: ChildProcess | None = None
        self._asked, self._answers = 0.0, False

    def start(self) -> None:
        """Start it and wait until it answers and has the image. Raises ServicesError."""
        at = self.directory / HOLDER
        places = {"root": "data", "state": "state", "address": "socket"}
        words = [f"--{name}={at / place}" for name, place in places.items()]
        self._holder = spawn([HOLDER, *words], self._log)
        self.begin()
        if not wait_until(self._answers_now, READY_S, every_s=0.1):
            msg = f"the docker engine of this run does not answer; see {self._log}"
            raise ServicesError(msg)
        with closing(self._client()) as client:
            client.api.import_image_from_data(image_of_programs(), repository=IMAGE)

    def begin(self) -> None:
        """Start its process without waiting."""
        at = self.directory
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "dockerd.pid"}
        words = [f"--{name}={at / place}" for name, place in places.items()]
        bare = ["--bridge=none", "--iptables=false", "--ip-forward=false"]
        holder = f"--containerd={at / HOLDER / 'socket'}"
        command = [PROGRAM, f"--host={self.host}", holder, *words, *bare]
        self._process = spawn(command, self._log)

    def kill(self) -> None:
        """Send SIGKILL to the engine alone: containers run on until it is restarted."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def look(self) -> None:
        """Raise ServicesError if it ended without being killed."""
        if self._process is not None and self._process.poll() is not None:
            msg = f"the docker engine ended by itself; see {self._log}"
            raise ServicesError(msg)

    def answers(self) -> bool:
        """Return True if it answers; checked at intervals."""
        if time.monotonic() > self._asked + LOOK_EVERY_S:
            self._answers = self._process is not None and self._answers_now()
            self._asked = time.monotonic()
        return self._answers

    def first_processes(self) -> dict[str, int]:
        """Return the host's pids of its boxes' first processes; 0 for one that does not run.

        Empty if it does not answer.
        """
        if not self.answers():
            return {}
        with closing(self._client()) as client:
            found = client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
            return {str(each.labels[LABEL]): int(each.attrs["State"]["Pid"]) for each in found}

    def close(self) -> None:
        """End it with its containers, and remove its data. May be called twice."""
        self.send(signal.SIGCONT)
        for process in (self._process, self._holder):
            if process is not None:
                end([process], GRACE_S)
        self._process = self._holder = None
        for pid in _speaking_of(self.directory):
            kill_tree(pid)
        for place in sorted(_mounted_below(self.directory), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers_now(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(ANSWER_S)
            try:
                client.connect(self.host.removeprefix("unix://"))
                client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in client.recv(64)
            except OSError:
                return False

    def _client(self) -> Any:
        import docker

        return docker.DockerClient(base_url=self.host, timeout=30, version="auto")


def image_of_programs() -> bytes:
    """Return a tar stream of the programs and their libraries, at this host's paths."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in PROGRAMS:
            program = shutil.which(name)
            if program is None:
                msg = f"program {name!r} is not on this host; containers are made of it"
                raise Refused(msg)
            tar.add(os.path.realpath(program), f"bin/{name}")
            for library in _libraries(program):
                if library.lstrip("/") not in tar.getnames():
                    tar.add(os.path.realpath(library), library.lstrip("/"))
    return packed.getvalue()


def _libraries(program: str) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return LIBRARY.findall(told)


def _speaking_of(directory: Path) -> Iterator[int]:
    """Yield processes whose arguments name a directory: those that each watch a container."""
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.fsencode(f"{directory}/") in cmdline.read_bytes():
                yield int(cmdline.parent.name)


def _mounted_below(directory: Path) -> Iterator[str]:
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{directory}/"):
            yield place
