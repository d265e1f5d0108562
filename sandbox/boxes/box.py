"""The interface of boxes, which run an agent's commands: a directory, a container, a namespace.

A driver starts boxes, a box starts programs, and a program is read and written in bytes. All calls
are asynchronous, without threads, on the event loop that the driver was made on. If a call is
cancelled, `Box.close` still releases everything that it had begun.

Errors are WorkFailed: `box_died` where the box is gone and the command did not cause it (retriable,
never an exit code), `box_unavailable` where a driver cannot open one, `bad_archive` for a
tar stream that is refused or cannot be read, `bad_config`.
"""

import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollcall.schemas import names
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed

DRIVERS: Mapping[str, str] = {
    "bubblewrap": "rollcall.sandbox.boxes.bubblewrap:BubblewrapDriver",
    "docker": "rollcall.sandbox.boxes.docker_driver:DockerDriver",
    "local": "rollcall.sandbox.boxes.local:LocalDriver",
}
"""Drivers by their short names; a module is imported when its driver is first used."""
AUTO = "auto"
"""The name of the driver that picks one that isolates and has the image: `auto_driver`."""


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """The limits of all programs in one box; 0 is no limit."""

    memory_bytes: int = 4 << 30
    processes: int = 512
    file_bytes: int = 1 << 30
    """Size of each file that it writes."""
    open_files: int = 1024
    """Open files of each process."""
    disk_bytes: int = 1 << 30
    """Total size of what it writes below one directory, where the driver has such a bound."""
    cpus: float = 0.0
    """Processors used at once, where the driver has such a bound."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """The build with which a docker engine makes an image that it lacks."""

    directory: str
    """A directory of this host with the Dockerfile; the build runs there."""
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Spec:
    """The specification of a box; boxes of equal specs are interchangeable."""

    image: str = ""
    """The name of the image; empty for the programs of this host."""
    limits: BoxLimits = field(default_factory=BoxLimits)
    network: bool = False
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Directories of this host, read-only, by their path in the box."""
    writable: tuple[str, ...] = ()
    """Paths that commands may write, beside the box's directory and `/tmp`; the image's content
    there is copied."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables beside those of `VARIABLES`."""
    build: ImageBuild | None = None
    """The build of an image whose name is derived from its sources."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of one command."""

    output: str
    """Its standard output and errors, interleaved; the middle may be left out."""
    exit_code: int
    """128 plus the signal's number if a signal killed it; -1 if it timed out."""
    timed_out: bool = False
    oom: bool = False
    """True if it was killed because the box was out of memory, where the driver can tell."""
    elided_chars: int = 0
    """The number of characters that are left out of the output."""
    ms: float = 0.0
    fresh: bool = False
    """True if the shell ended with this command: the next one begins in a new shell."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a box has used or holds now; None where its driver cannot tell."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    oom_kills: int = 0
    """The number of its processes that were OOM-killed because it reached its own bound."""


class BoxProgram(Protocol):
    """One program in a box, with all processes that it starts."""

    async def write(self, content: bytes) -> None:
        """Write to its standard input; return silently if it has ended."""
        ...

    def close_input(self) -> None:
        """Close its standard input. May be called twice."""
        ...

    async def read(self, most_bytes: int) -> bytes:
        """Return its next output, standard error included; empty at the end of the output."""
        ...

    async def wait(self) -> int:
        """Wait until it and all its descendants have ended; return its exit code or -signal."""
        ...

    async def end(self) -> None:
        """Kill it and all that it started; the kill is sent at once. May be called twice."""
        ...


class Box(Protocol):
    """A place to run commands in, used by one episode."""

    ident: str
    """Its name on its host, unique among the boxes of its driver: see `IDENT`."""
    directory: bytes
    """The working directory of its commands, as they see it."""
    workdir: str
    """The directory of its task's files, if not its own directory; set by the environment."""
    shown: Mapping[bytes, bytes]
    """Names that differ from box to box, and their replacements in outputs."""
    episode_over: bool
    """True once its environment has ended all that ran in it: an agent that was killed by that has
    not failed."""

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> BoxProgram:
        """Start a program, given by its absolute path, in its directory; `env` adds variables."""
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
    ) -> CommandResult:
        """Run a program to its end, or kill it with all that it started at the deadline.

        It is looked up in `PATH`, and begins in the directory of the box or in `cwd`; the exit code
        is 127 if it is not found, 126 if it cannot be started. `most_chars` of its output are kept,
        from the beginning and the end.
        """
        ...

    async def stand_by(self, within_s: float) -> None:
        """Keep a shell ready that has answered; a shell that is ready is checked again.

        Raises WorkFailed(`box_died`) if no shell answers.
        """
        ...

    async def shell(self, within_s: float) -> BoxProgram:
        """Return a `/bin/sh` that has answered: the ready one or a new one. The caller owns it.

        Raises WorkFailed(`box_died`).
        """
        ...

    async def put(self, tar: bytes, directory: str = ".") -> None:
        """Unpack a tar stream in a directory, which is created if it is missing.

        Raises WorkFailed(`bad_archive`), see `rollcall.sandbox.boxes.tar_streams`.
        """
        ...

    async def get(self, path: str, *, most_bytes: int) -> bytes:
        """Return a file, or a directory with all below it, as a tar stream that was checked.

        `tar_streams.files` reads it. Raises WorkFailed(`bad_archive`), also for a missing path.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """Listen on 127.0.0.1 of the box's own network: only its programs can connect.

        The caller owns the socket. Raises WorkFailed: `bad_config` if the box has no network of
        its own, `box_unavailable` if the port is taken, `box_died`.
        """
        ...

    def entrance(self) -> Mapping[str, object]:
        """Return the settings with which a process of this host enters the box.

        `supervisor_process.take_place` uses them. Raises WorkFailed(`bad_config`) if the box has no
        namespaces.
        """
        ...

    async def usage(self) -> Usage:
        """Return the resources that it has used so far."""
        ...

    async def end_programs(self) -> None:
        """Kill all processes in it, no matter who started them, and set `episode_over`.

        The box stays usable, and more programs may be started. Raises WorkFailed: `box_spoilt` if
        its processes cannot be killed, `box_died`.
        """
        ...

    async def write(self, name: str, content: bytes) -> None:
        """Write a file below the directory, executable if it begins with `#!`."""
        ...

    async def copy_in(self, source: Path) -> None:
        """Copy the content of a directory of this host into the box's directory."""
        ...

    async def close(self) -> None:
        """End all programs in it and release its resources. May be called twice."""
        ...


class Driver(Protocol):
    """A driver, which starts boxes of one kind."""

    name: str
    kept: bool = False
    """True if the event loop's supervisor process starts the programs in its boxes."""

    def of(self, spec: Spec) -> "Driver":
        """Return the driver that opens a box of this spec: itself, except for `AutoDriver`."""
        del spec
        return self

    async def open(self, spec: Spec, ident: str = "") -> Box:
        """Open an unused box; without `ident` a name is drawn.

        Raises WorkFailed(`bad_config`) for a name that is malformed or taken.
        """
        ...

    def enforces(self) -> Mapping[str, str]:
        """Return the mechanism that enforces each of `ENFORCED`; missing keys are not enforced."""
        ...

    def lacks(self) -> Sequence[str]:
        """Return what is not enforced on this host, and what to install or allow for it."""
        ...

    async def unavailable(self) -> str:
        """Return why it can open no box here, and the remedy; empty if it can."""
        ...

    async def found(self) -> Sequence[str]:
        """Return the names of all boxes of this kind on this host, no matter who made them.

        Boxes of other deployments are included: the caller recognises its own by their names.
        """
        ...

    async def remove(self, ident: str) -> None:
        """End all programs in a box and remove it; do nothing if it does not exist."""
        ...


ENFORCED = ("network", "memory", "pids", "disk", "seccomp", "user", "files", "together")
"""Keys of `Driver.enforces`; `together` is a bound on all boxes of a host."""
IDENT = re.compile("[a-z0-9]{8,40}")
"""The pattern of a box's name."""


def drawn_ident(ident: str) -> str:
    """Return the given name, or draw a new one. Raises WorkFailed(`bad_config`)."""
    if ident and not IDENT.fullmatch(ident):
        msg = f"{ident[:100]!r} is no name of a box: 8 to 40 small letters and digits"
        raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
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
"""Environment variables of every command; it inherits none of the worker's."""


def check_box(name: str) -> str:
    """Return the name if it is a driver's; raise Refused if not."""
    if name not in (kinds := (AUTO, *DRIVERS)):
        raise names.unknown_name("box", name, kinds)
    return name


def driver(name: str) -> Driver:
    """Make the driver of a name for the running event loop. Raises WorkFailed(`bad_config`)."""
    kinds = {**DRIVERS, AUTO: "rollcall.sandbox.boxes.auto_driver:AutoDriver"}
    try:
        check_box(name)
    except Refused as error:
        raise WorkFailed(FailureCode.BAD_CONFIG, str(error), retriable=False) from error
    made: Driver = names.load("box", kinds[name])()
    return made
