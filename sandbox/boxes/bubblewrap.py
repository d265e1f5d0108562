"""Boxes made of namespaces: no daemon, no network; bubblewrap makes one in some milliseconds.

    supervisor --> bwrap --> first process of the box, which only waits
       +-----> one for each program --> the program, entered into the box
       (`rollcall.sandbox.namespaces`)

If the worker is root, each box runs as a user of its own that owns nothing on the host; otherwise
it runs as the worker's user. Its files are those of the image, read-only, and tmpfs of a fixed
size; it stores nothing on the host. It ends with the worker, however the worker ends: through the
supervisor, through the death of its first process, or when its time to live is over. Where control
groups are writable they bound it as a whole, else rlimits bound each process. The box's name is in
the command line of bwrap and in the names of its control group folders, so any process can find it.
"""

import asyncio
import base64
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from rollcall.sandbox import process_tree
from rollcall.sandbox.boxes import seccomp_filter, tar_streams
from rollcall.sandbox.boxes.box import IDENT, BoxLimits, Driver, Spec, Usage, drawn_ident
from rollcall.sandbox.boxes.box_commands import BoxCommands
from rollcall.sandbox.boxes.cgroups import Cgroups
from rollcall.sandbox.boxes.images import ImageTree, image_tree
from rollcall.sandbox.boxes.interior import HOME, USER, WAIT, box_environment
from rollcall.sandbox.boxes.pipes import ReadEnd
from rollcall.sandbox.boxes.supervised_program import (
    SupervisedProgram,
    SupervisedPrograms,
    borrow_supervisor,
    no_room,
    rlimits,
)
from rollcall.sandbox.namespaces import NOTHING, STAGE
from rollcall.sandbox.process_supervisor import Confinement, ProcessSupervisor, SupervisedProcess
from rollcall.schemas.errors import FailureCode, WorkFailed

MARK = "rollcall-box-"
"""The beginning of the command line of the process that holds a box on its host."""
FIRST_USER, USERS = 0x7000_0000, 1 << 28
"""A range of user ids that no system assigns; a box's id is derived from a digest of its name."""
START_S = 30.0
INFO_BYTES = 1 << 16
READY = b"ready\n"
CONTROL = "control group"
FIRST = f"echo ready >&2; exec >/dev/null 2>&1 </dev/null {WAIT}"
PASSWD = f"root:x:0:0::/root:/usr/sbin/nologin\nagent:x:{USER}:{USER}::{HOME}:/bin/sh\n"
ETC: Mapping[str, str] = {
    "passwd": PASSWD,
    "group": f"root:x:0:\nagent:x:{USER}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


class BubblewrapBox(BoxCommands):
    """A box that is one set of namespaces; `BubblewrapDriver.open` makes it."""

    directory = HOME.encode()
    shown: Mapping[bytes, bytes] = {}

    def __init__(
        self, ident: str, supervisor: ProcessSupervisor, cgroups: Cgroups, spec: Spec, user: int
    ) -> None:
        self.ident = ident
        self._supervisor = supervisor
        self._cgroups = cgroups
        self._spec = spec
        self._holder: SupervisedProcess | None = None
        self._confinement = Confinement(user=user, seccomp=seccomp_filter.compiled())
        self._programs = SupervisedPrograms(
            supervisor,
            env=box_environment(spec),
            cwd=HOME,
            limits=_rlimits(spec.limits, cgroups),
        )
        self._open = True
        self._grouped = False

    async def begin(
        self, argv: Sequence[str], data: Sequence[bytes], staged: Sequence[str]
    ) -> None:
        """Start it. Raises WorkFailed: `box_unavailable`, `bad_config`."""
        groups = self._cgroups.make(self.ident, self._spec.limits)
        self._grouped = True
        programs = self._cgroups.programs(self.ident)
        self._confinement = replace(self._confinement, cgroups=groups, group=programs)
        with ExitStack() as ours:
            # Our copies of bubblewrap's ends are closed first, so that its exit is seen as EOF.
            with ExitStack() as theirs:
                info, said = (_pipe(ours, theirs) for _ in range(2))
                given = [memory(content, theirs) for content in data]
                await self._hold(argv, (given[0], info[1], said[1], *given[1:]), tuple(staged))
            first, mounts = await _first_process(info[0], said[0])
        self._confinement = replace(self._confinement, within=first, mounts=mounts)

    async def _hold(
        self, argv: Sequence[str], standard: tuple[int, ...], staged: tuple[str, ...]
    ) -> None:
        # The holder is in no control group that can run out of memory, whatever is written to its
        # oom_score_adj from within: so the OOM killer never ends a box before its programs.
        held = replace(
            self._confinement, name=MARK + self.ident, staged=staged, cgroups=(), group=""
        )
        try:
            self._holder = await self._supervisor.spawn(
                argv, env={}, cwd="/", standard=standard, confinement=held
            )
        except WorkFailed as error:
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, str(error), retriable=True) from error

    def overlaid(self, image: ImageTree) -> bool:
        """Return True if it shows all directories of its image as overlays of its own."""
        shown: set[str] = set()
        with suppress(OSError), open(f"/proc/{self._confinement.within}/mountinfo") as file:
            shown = {line.split()[4] for line in file if f":{NOTHING}" in line}
        return shown >= {f"/{Path(each).relative_to(image.root)}" for each in image.directories()}

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> SupervisedProgram:
        if self._holder is None or self._holder.ended.done():
            _died("its first process has ended")
        return await self._programs.start(argv, env, self._confinement)

    async def listen(self, port: int) -> socket.socket:
        return await self._programs.listen(port, self._confinement)

    def entrance(self) -> Mapping[str, object]:
        return self._programs.entrance(self._confinement)

    async def usage(self) -> Usage:
        if self._cgroups:
            return self._cgroups.usage(self.ident)
        return await self._programs.usage()

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            if self._grouped:
                await self._cgroups.remove(self.ident)
            if self._holder:
                await self._holder.end()
            await self._programs.end()
        finally:
            await self._supervisor.give_back()


class BubblewrapDriver(Driver):
    """The driver that opens boxes made of namespaces."""

    name = "bubblewrap"
    kept = True

    def __init__(
        self, program: str = "", cgroups: Cgroups | None = None, user: int | None = None
    ) -> None:
        """Run boxes that root starts as `user`; None gives each box a user of its own."""
        self._program = program or shutil.which("bwrap") or ""
        self._cgroups = Cgroups() if cgroups is None else cgroups
        self._user = user
        self._overlaid = False
        """True if the last box had the files of its image to itself."""

    async def open(self, spec: Spec, ident: str = "") -> BubblewrapBox:
        """Open a box. Raises WorkFailed: `box_unavailable` with the remedy, `bad_config`."""
        if not self._program:
            _unavailable("bubblewrap is not installed; `apt-get install bubblewrap` installs it")
        if spec.network:
            _bad_config("a box of driver 'bubblewrap' has no network")
        if spec.build:
            msg = f"image {spec.image!r} is built by a docker engine alone: take box 'docker' or "
            msg += f"'auto', or another image; its Dockerfile is in {spec.build.directory}"
            raise WorkFailed(FailureCode.IMAGE, msg, retriable=False)
        image = image_tree(spec.image)
        ident = drawn_ident(ident)
        staged = self._staged(spec, image)
        argv, data = command(self._program, spec, image, staged)
        supervisor = borrow_supervisor()
        box = BubblewrapBox(ident, supervisor, self._cgroups, spec, self.user_of(ident))
        try:
            await box.begin(argv, data, tuple(staged))
            self._overlaid = box.overlaid(image)
            for place in spec.writable:
                if source := image.directory(place):
                    await box.put(await asyncio.to_thread(tar_streams.of_directory, source), place)
        except BaseException:
            await box.close()
            raise
        return box

    def _staged(self, spec: Spec, image: ImageTree) -> dict[str, str]:
        """Return the staged paths of the host's directories, at which bubblewrap finds them.

        Only root stages: so the box's user needs no access to the paths that lead there, and the
        image's directories become the box's own overlays.
        """
        if os.getuid() != 0:
            return {}
        sources = [source for _, source in sorted(spec.mounts.items())]
        sources += image.directories() if self._user is None else []
        return {source: f"{STAGE}/{n}" for n, source in enumerate(dict.fromkeys(sources))}

    def enforces(self) -> Mapping[str, str]:
        by = {"network": "namespace", "disk": "tmpfs of a size"}
        by["memory"] = CONTROL if self._cgroups.holds("memory") else "rlimits, of each process"
        by["pids"] = (
            CONTROL if self._cgroups.holds("pids") else "rlimits, of all that its user runs"
        )
        own = os.getuid() == 0 and self._user is None
        by["user"] = "namespace, a user of its own" if own else "namespace, the worker's user"
        by |= {"seccomp": "libseccomp"} if seccomp_filter.compiled() else {}
        by |= {"files": "overlay of its image"} if self._overlaid else {}
        together = self._cgroups.together()
        if together.memory_bytes and together.processes:
            by["together"] = (
                f"{CONTROL}, all boxes of this host: {together.memory_bytes:,} bytes of memory, "
                f"{together.processes:,} processes"
            )
        return by

    def lacks(self) -> Sequence[str]:
        found = []
        if not self._cgroups.holds("memory") or not self._cgroups.holds("pids"):
            found.append(
                "control groups: no box is bound as a whole, nor are all boxes together; start "
                "workers as root, or give them a writable /sys/fs/cgroup"
            )
        if not seccomp_filter.compiled():
            found.append("seccomp: every system call is allowed; `pip install 'rollcall[boxes]'`")
        if os.getuid() != 0:
            found.append(
                "users: boxes share that of the worker, and the files of their images, which they "
                "can lock and watch; started by root each has its own"
            )
        return found

    async def unavailable(self) -> str:
        try:
            box = await self.open(Spec())
        except WorkFailed as error:
            return str(error)
        await box.close()
        return ""

    async def found(self) -> Sequence[str]:
        marked = await asyncio.to_thread(_holders)
        return sorted({*self._cgroups.found(), *marked})

    async def remove(self, ident: str) -> None:
        ident = drawn_ident(ident)
        await self._cgroups.remove(ident)
        for pid in (await asyncio.to_thread(_holders)).get(ident, ()):
            process_tree.kill_tree(pid)

    def user_of(self, ident: str) -> int:
        """Return the host's user id of a box; 0 is the worker's own user, if that is not root."""
        if os.getuid() != 0 or self._user is not None:
            return self._user or 0
        digest = hashlib.sha256(ident.encode()).digest()
        return FIRST_USER + int.from_bytes(digest[:8], "big") % USERS


def command(
    program: str, spec: Spec, image: ImageTree, staged: Mapping[str, str]
) -> tuple[list[str], list[bytes]]:
    """Return bubblewrap's arguments, and the content of its descriptors 0, 3, 4 and so on."""
    size = str(spec.limits.disk_bytes or BoxLimits().disk_bytes)
    argv = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    argv += ["--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    argv += ["--uid", str(USER), "--gid", str(USER), "--hostname", "box"]
    argv += image.arguments(staged)
    data = [base64.b64decode(seccomp_filter.compiled())]
    for name, content in ETC.items():
        if not image.may_hold(f"/etc/{name}"):
            continue
        argv += ["--ro-bind-data", str(2 + len(data)), f"/etc/{name}"]
        data.append(content.encode())
    argv += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    for place in ("/dev/shm", "/tmp", HOME, *spec.writable):
        argv += ["--perms", "0755" if place == HOME else "1777", "--size", size, "--tmpfs", place]
    for place, source in sorted(spec.mounts.items()):
        argv += ["--ro-bind", staged.get(source, source), place]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    argv += ["--seccomp", "0"] if data[0] else []
    argv += ["--info-fd", "1", "--", "/bin/sh", "-c", FIRST]
    return argv, data


async def _first_process(info: ReadEnd, said: ReadEnd) -> tuple[int, int]:
    """Wait until a box is ready; return its pid and the number of its mount namespace.

    Raises WorkFailed(`box_unavailable`).
    """
    told, errors = b"", b""
    try:
        async with asyncio.timeout(START_S):
            while chunk := await info.read(INFO_BYTES):
                told += chunk
            while not errors.endswith(READY) and (chunk := await said.read(INFO_BYTES)):
                errors += chunk
    except TimeoutError:
        _unavailable(f"bubblewrap has made no box within {START_S:g} s")
    if not errors.endswith(READY):
        why = errors[-500:].decode(errors="replace").strip() or "it said nothing"
        _unavailable(f"bubblewrap cannot make a box: {why}{_remedy(why)}")
    first = json.loads(told)
    return int(first["child-pid"]), int(first["mnt-namespace"])


def _remedy(why: str) -> str:
    if "disable-userns" in why:
        return "; version 0.8 or newer is needed"
    if "source path" in why:
        return "; every user must be able to walk there, for boxes run as others than root"
    if "namespace" in why or "uid map" in why:
        return "; allow user namespaces: `sysctl user.max_user_namespaces=10000`, and see " + (
            "`kernel.unprivileged_userns_clone` and `kernel.apparmor_restrict_unprivileged_userns`"
        )
    return ""


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[ReadEnd, int]:
    """Open a pipe whose ends are closed by their stacks. Raises WorkFailed(`box_unavailable`)."""
    try:
        read, write = os.pipe()
    except OSError as error:
        raise no_room(error) from error
    theirs.callback(os.close, write)
    end = ReadEnd(read)
    ours.callback(end.close)
    return end, write


def memory(content: bytes, theirs: ExitStack) -> int:
    """Make an anonymous file of this content in memory. Raises WorkFailed(`box_unavailable`)."""
    try:
        fd = os.memfd_create("box")
    except OSError as error:
        raise no_room(error) from error
    theirs.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _holders() -> dict[str, list[int]]:
    """Return the pids of processes that hold boxes on this host, by box name; blocks."""
    mark, found = MARK.encode(), dict[str, list[int]]()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            name = cmdline.read_bytes().partition(b"\0")[0]
            if name.startswith(mark):
                ident = name.removeprefix(mark).decode(errors="replace")
                if IDENT.fullmatch(ident):  # a program in a box may choose any command line
                    found.setdefault(ident, []).append(int(cmdline.parent.name))
    return found


def _rlimits(limits: BoxLimits, cgroups: Cgroups) -> dict[str, int]:
    """Return the rlimits for the limits that control groups do not enforce."""
    return rlimits(
        RLIMIT_AS=0 if cgroups.holds("memory") else limits.memory_bytes,
        RLIMIT_NPROC=0 if cgroups.holds("pids") else limits.processes,
        RLIMIT_FSIZE=limits.file_bytes,
        RLIMIT_NOFILE=limits.open_files,
    )


def _died(why: str) -> NoReturn:
    msg = f"a box is gone: {why}"
    raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)


def _unavailable(message: str) -> NoReturn:
    raise WorkFailed(FailureCode.BOX_UNAVAILABLE, message, retriable=True)


def _bad_config(message: str) -> NoReturn:
    raise WorkFailed(FailureCode.BAD_CONFIG, message, retriable=False)
