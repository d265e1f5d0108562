"""The seam to whatever holds an agent's commands: a directory, a container, a namespace.

A driver starts boxes, a box starts programs in itself, a program is spoken to in bytes. Everything
waits without a thread, on the event loop that the driver was made on. Whoever is cancelled within
one of these calls leaves nothing half done that `Box.close` does not give back.

Errors are WorkFailed: `box_died` where the box is gone through no fault of the command (retriable,
never an exit code), `box_unavailable` where a driver has none to give, `bad_archive` for a
tar stream that is refused or cannot be had, `bad_config`.
"""

import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from schemas import names
from schemas.errors import Refused, WorkFailed

DRIVERS: Mapping[str, str] = {
    "bubblewrap": "sandbox.boxes.bubblewrap:BubblewrapDriver",
    "docker": "sandbox.boxes.docker_driver:DockerDriver",
    "local": "sandbox.boxes.local:LocalDriver",
}
"""Short names, and the drivers behind them; these modules are imported when first asked for."""
AUTO = "auto"
"""Whichever of them isolates and has the image: `sandbox.boxes.auto_driver`."""
BOX_DIED = "box_died"
"""The code of what fails with its box, through no fault of whoever works there."""
BOX_SPOILT = "box_spoilt"
"""The code of what fails since whoever worked in its box has left nothing to do anything with."""


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """How much what runs in one box may take; 0 is no limit."""

    memory_bytes: int = 4 << 30
    processes: int = 512
    file_bytes: int = 1 << 30
    """Of each file that it writes."""
    open_files: int = 1024
    """Of each process."""
    disk_bytes: int = 1 << 30
    """Of all that it writes below one directory, where the driver has such a bound."""
    cpus: float = 0.0
    """Of processors at once, where the driver has such a bound."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """How an engine makes an image that it has not."""

    directory: str
    """Of this host; its Dockerfile is built there."""
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Spec:
    """What a box is made of; two boxes of equal specs can stand in for one another."""

    image: str = ""
    """Empty: the programs of this host."""
    limits: BoxLimits = field(default_factory=BoxLimits)
    network: bool = False
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Directories of this host, read-only, by their place in the box."""
    writable: tuple[str, ...] = ()
    """Places that commands may write, beside the box's directory and `/tmp`; what the image has
    there is copied."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of `VARIABLES`."""
    build: ImageBuild | None = None
    """Of an image that is named by what it is made of."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one command."""

    output: str
    """What it printed, errors among it, in their order; the middle of it may be left out."""
    exit_code: int
    """128 and the signal's number where one killed it; -1 where the time was up."""
    timed_out: bool = False
    oom: bool = False
    """Killed since the box had no memory left, where the driver can tell."""
    elided_chars: int = 0
    """So many characters are left out of the output."""
    ms: float = 0.0
    fresh: bool = False
    """The shell ended with this command: the next one begins in a new one."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a box has taken, or holds now; None where its driver cannot tell."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    oom_kills: int = 0
    """So many of its processes were killed for want of memory, where it came to its own bound."""


class BoxProgram(Protocol):
    """One program in a box, with all that it starts."""

    async def write(self, content: bytes) -> None:
        """Write to its standard input; returns silently when it has ended."""
        ...

    def close_input(self) -> None:
        """Its standard input ends here. May be called twice."""
        ...

    async def read(self, most_bytes: int) -> bytes:
        """What it has written next, errors among it; empty when nothing will come any more."""
        ...

    async def wait(self) -> int:
        """Its exit code, a signal's number negative, when it has ended and all below it too."""
        ...

    async def end(self) -> None:
        """Kill it and all that it started; the kill is under way at once. May be called twice."""
        ...


class Box(Protocol):
    """One place for commands, used by one episode."""

    ident: str
    """What it is called on its host, among the boxes of its driver: see `IDENT`."""
    directory: bytes
    """Where its commands begin, as they see it."""
    workdir: str
    """Where its task's files are, if not in its directory; said by whoever has looked."""
    shown: Mapping[bytes, bytes]
    """Names that differ from box to box, and what stands for them in outputs."""
    episode_over: bool
    """All that ran in it was ended by its environment: an agent that was killed there has not
    failed."""

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> BoxProgram:
        """Start a program, by its whole path, in its directory; `env` is added to its own."""
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        most_chars: int = 10_000,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Ran:
        """Run a program to its end, or kill it with all that it started at the deadline.

        It is looked for in `PATH`, and begins in the directory of the box or in `cwd`; exit code
        127 where there is none, 126 where it cannot begin. Of its output `most_chars` are kept,
        the beginning and the end.
        """
        ...

    async def stand_by(self, within_s: float) -> None:
        """Have a shell wait that has answered; one that waits is asked again.

        Raises WorkFailed(`box_died`) where none does.
        """
        ...

    async def shell(self, within_s: float) -> BoxProgram:
        """`/bin/sh`, which has answered: the one that waits, or a new one. It is the caller's.

        Raises WorkFailed(`box_died`).
        """
        ...

    async def put(self, tar: bytes, directory: str = ".") -> None:
        """Unpack a stream in a directory, which is made where it is missing.

        Raises WorkFailed(`bad_archive`), see `sandbox.boxes.tar_streams`.
        """
        ...

    async def get(self, path: str, *, most_bytes: int) -> bytes:
        """A file, or a directory with all below it, as a tar stream that was looked through.

        `tar_streams.files` reads it. Raises WorkFailed(`bad_archive`), also where nothing is there.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """Listen on 127.0.0.1 of the box's own network: nobody but what runs in it can connect.

        The socket is the caller's. Raises WorkFailed: `bad_config` where a box has no network of
        its own, `box_unavailable` where somebody listens there, `box_died`.
        """
        ...

    def entrance(self) -> Mapping[str, object]:
        """How a process of this host becomes one of the box (`keeper_process.take_place`).

        Raises WorkFailed(`bad_config`) where a box has no namespaces.
        """
        ...

    async def usage(self) -> Usage:
        """What it has taken so far."""
        ...

    async def end_programs(self) -> None:
        """Kill all that runs in it, whoever started that, and have `episode_over` say so.

        The box goes on, and more may be started. Raises WorkFailed: `box_spoilt` where what runs
        there keeps itself from being killed, `box_died`.
        """
        ...

    async def write(self, name: str, content: bytes) -> None:
        """Write a file below the directory, executable if it begins with `#!`."""
        ...

    async def copy_in(self, source: Path) -> None:
        """Copy what a directory of this host holds into the directory."""
        ...

    async def close(self) -> None:
        """End all that runs in it, and give everything back. May be called twice."""
        ...


class Driver(Protocol):
    """Starts boxes of one kind."""

    name: str
    kept: bool = False
    """Whether the keeper of the event loop starts what runs in its boxes."""

    def of(self, spec: Spec) -> "Driver":
        """Whose boxes these are: its own, but for a driver that only chooses among others."""
        del spec
        return self

    async def open(self, spec: Spec, ident: str = "") -> Box:
        """A box in which nobody has been; one without a name is given one.

        Raises WorkFailed(`bad_config`) for a name that is none, or is taken.
        """
        ...

    def enforces(self) -> Mapping[str, str]:
        """By what it holds a box, for each of `ENFORCED`; what is missing here is not held."""
        ...

    def lacks(self) -> Sequence[str]:
        """What would hold a box better here, and what to install or allow for it."""
        ...

    async def unavailable(self) -> str:
        """Why it can open no box here, and the remedy; empty where it can."""
        ...

    async def found(self) -> Sequence[str]:
        """The names of all boxes of this kind on this host, whoever made them.

        Those of other deployments are among them: whoever removes boxes knows its own by name.
        """
        ...

    async def remove(self, ident: str) -> None:
        """End all that runs in a box, and remove what is left of it; silent where nothing is."""
        ...


ENFORCED = ("network", "memory", "pids", "disk", "seccomp", "user", "files", "together")
"""What a driver may hold a box by, `together` all boxes of a host: `Driver.enforces`."""
IDENT = re.compile("[a-z0-9]{8,40}")
"""The name of a box."""


def drawn_ident(ident: str) -> str:
    """The name that was given, or a new one. Raises WorkFailed(`bad_config`)."""
    if ident and not IDENT.fullmatch(ident):
        msg = f"{ident[:100]!r} is no name of a box: 8 to 40 small letters and digits"
        raise WorkFailed("bad_config", msg, retriable=False)
    return ident or secrets.token_hex(8)


VARIABLES: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""What every command finds in its environment; of the worker's own it finds nothing."""


def check_box(name: str) -> str:
    """The name of a driver; raises Refused for what is none."""
    if name not in (kinds := (AUTO, *DRIVERS)):
        raise names.unknown("box", name, kinds)
    return name


def driver(name: str) -> Driver:
    """The driver of a name, for the event loop that runs. Raises WorkFailed(`bad_config`)."""
    kinds = {**DRIVERS, AUTO: "sandbox.boxes.auto_driver:AutoDriver"}
    try:
        check_box(name)
    except Refused as error:
        raise WorkFailed("bad_config", str(error), retriable=False) from error
    made: Driver = names.load("box", kinds[name])()
    return made
