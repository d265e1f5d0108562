"""Boxes that are directories of this host, without isolation; a warning is logged once.

Commands run as the worker's own user, with all its rights. A box still guarantees that its
processes, also those that fork twice or lead sessions of their own, end with it, and with the
worker however that ends (`rollcall.sandbox.process_supervisor`); its directory is removed; rlimits
bound each process. It does not guarantee the following. A command that kills the supervisor (`kill
-9 $PPID`) ends all boxes of its worker; one that kills all processes of its user can outlive them.
The limit of processes counts all of the user's, and root has none. Memory is bounded for each
process alone, and OOM kills are not detected.
"""

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import structlog

from rollcall.sandbox import process_tree
from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import IDENT, VARIABLES, BoxLimits, Driver, Spec, Usage, drawn_ident
from rollcall.sandbox.boxes.box_commands import BoxCommands
from rollcall.sandbox.boxes.supervised_program import (
    SupervisedProgram,
    SupervisedPrograms,
    borrow_supervisor,
    rlimits,
)
from rollcall.sandbox.process_supervisor import ProcessSupervisor, remove_tree
from rollcall.schemas.errors import FailureCode, WorkFailed

SUFFIX = ".box"
"""The suffix of a box's directory, so that no directory's name is a prefix of another."""
NO_NAMESPACES = "a box of driver 'local' is a directory and shares the network of its host"

log = structlog.get_logger()
_warned: set[str] = set()


class LocalBox(BoxCommands):
    """A box that is a directory, and the processes that were started in it."""

    def __init__(self, spec: Spec, supervisor: ProcessSupervisor, place: Path) -> None:
        self.ident = place.name.removesuffix(SUFFIX)
        self._supervisor = supervisor
        self._place = place
        self._home = place / "w"
        self._tmp = place / "tmp"
        self._open = True
        self._programs = SupervisedPrograms(
            supervisor,
            env={**VARIABLES, "HOME": str(self._home), "TMPDIR": str(self._tmp), **spec.env},
            cwd=str(self._home),
            limits=_rlimits(spec.limits),
        )
        self.directory = os.fsencode(self._home)
        self.shown = {self.directory: b"~", os.fsencode(place): b"~/.."}

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> SupervisedProgram:
        self._make_home()
        return await self._programs.start(argv, env)

    async def write(self, name: str, content: bytes) -> None:
        """Write a file. Raises WorkFailed(`bad_config`) if the system refuses it."""
        path = self._home / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if content.startswith(b"#!") else 0o644)
            for place in (path, *path.parents):
                os.utime(place, (tar_streams.BORN_S, tar_streams.BORN_S))
                if place == self._home:
                    break
        except OSError as error:
            _bad_config(f"file {name!r} cannot be written into the box: {error.strerror}")

    async def copy_in(self, source: Path) -> None:
        """Copy a directory; symbolic links stay links. Raises WorkFailed(`bad_config`)."""
        await asyncio.to_thread(_copy, source, self._home)

    async def listen(self, port: int) -> socket.socket:
        del port
        _bad_config(NO_NAMESPACES)

    def entrance(self) -> Mapping[str, object]:
        _bad_config(NO_NAMESPACES)

    async def usage(self) -> Usage:
        return await self._programs.usage()

    async def _kill_all(self) -> None:
        """Kill its own programs alone: other processes of its user cannot be told apart."""
        await self._programs.end()

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            await self._programs.end()
            await asyncio.to_thread(remove_tree, self._place)
        finally:
            await self._supervisor.give_back()

    def _make_home(self) -> None:
        """Restore the directories if a command removed, replaced or locked them."""
        for directory in (self._place, self._home, self._tmp):
            try:
                if not directory.is_dir():
                    directory.unlink(missing_ok=True)
                    directory.mkdir(parents=True)
                elif not (
                    directory.is_symlink() or os.access(directory, os.R_OK | os.W_OK | os.X_OK)
                ):
                    directory.chmod(stat.S_IRWXU)
            except OSError as error:
                msg = f"directory {directory} of a box is gone and cannot be made: {error}"
                raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True) from error


class LocalDriver(Driver):
    """The driver that opens boxes that are directories."""

    name = "local"
    kept = True

    async def open(self, spec: Spec, ident: str = "") -> LocalBox:
        """Open a box. Raises WorkFailed(`bad_config`) for a spec that a directory cannot meet."""
        if spec.image or spec.mounts:
            _bad_config("a box of driver 'local' is a directory: it has no image and no mounts")
        if ident and await self._places(drawn_ident(ident)):
            _bad_config(f"there is a box {ident!r} on this host already")
        if "local" not in _warned:
            _warned.add("local")
            log.warning("box_isolates_nothing", driver="local", user=os.getuid())
        ident = drawn_ident(ident)
        supervisor = borrow_supervisor()
        place = supervisor.directory / (ident + SUFFIX)
        box = LocalBox(spec, supervisor, place)
        try:
            box._make_home()
        except WorkFailed:
            await box.close()
            raise
        return box

    def enforces(self) -> Mapping[str, str]:
        return {
            "memory": "rlimits, of each process for itself",
            "pids": "rlimits, of all that the user runs; none for root",
            "disk": "rlimits, of each file for itself",
        }

    def lacks(self) -> Sequence[str]:
        return ["isolation: whatever the worker's user reaches is reached; take `bubblewrap`"]

    async def unavailable(self) -> str:
        return ""

    async def found(self) -> Sequence[str]:
        names = [place.name.removesuffix(SUFFIX) for place in await self._places("*")]
        return [name for name in names if IDENT.fullmatch(name)]

    async def remove(self, ident: str) -> None:
        """Remove a box; a process that was started without the box's HOME is not found."""
        for place in await self._places(drawn_ident(ident)):
            for pid in await asyncio.to_thread(_at_home_in, place):
                process_tree.kill_tree(pid)
            await asyncio.to_thread(remove_tree, place)

    async def _places(self, ident: str) -> list[Path]:
        """Return the directories of boxes, of all workers."""
        return await asyncio.to_thread(_places_of, ident)


def _shared() -> Path:
    """Return the parent of all supervisors' directories."""
    return Path(tempfile.gettempdir()).resolve()


def _places_of(ident: str) -> list[Path]:
    """Find boxes in all supervisors' directories, some of which may vanish meanwhile; blocks."""
    found: list[Path] = []
    for folder in _shared().glob("rollcall-*"):
        with suppress(FileNotFoundError, NotADirectoryError):
            found += folder.glob(f"{ident}{SUFFIX}")
    return sorted(found)


def _at_home_in(place: Path) -> list[int]:
    """Find the processes of a box by the HOME that they were started with; blocks."""
    told, found = f"HOME={place}/w".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if told in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _rlimits(limits: BoxLimits) -> dict[str, int]:
    return rlimits(
        RLIMIT_AS=limits.memory_bytes,
        RLIMIT_NPROC=limits.processes,
        RLIMIT_FSIZE=limits.file_bytes,
        RLIMIT_NOFILE=limits.open_files,
    )


def _copy(source: Path, target: Path) -> None:
    """Copy a directory after checking its size. Raises WorkFailed(`bad_config`)."""
    try:
        tar_streams.measure(source)
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        for directory, _, files in os.walk(target, topdown=False):
            for path in (*(os.path.join(directory, name) for name in files), directory):
                os.utime(path, (tar_streams.BORN_S, tar_streams.BORN_S), follow_symlinks=False)
    except (OSError, shutil.Error, RecursionError) as error:
        _bad_config(f"{source} cannot be copied into the box: {str(error)[:500]}")


def _bad_config(message: str) -> NoReturn:
    raise WorkFailed(FailureCode.BAD_CONFIG, message, retriable=False)
