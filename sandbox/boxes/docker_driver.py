"""Boxes that are hardened containers of a docker engine.

The engine makes and removes them. The worker's supervisor starts programs in their namespaces, as
in those of bubblewrap, as an unprivileged user of the container. The first process only waits, for
a day at most: so a container that was never removed ends then.
"""

import asyncio
import os
import posixpath
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall.sandbox import program_groups
from rollcall.sandbox.boxes import seccomp_filter, tar_streams
from rollcall.sandbox.boxes.box import Driver, Spec, Usage, drawn_ident
from rollcall.sandbox.boxes.box_commands import BoxCommands
from rollcall.sandbox.boxes.cgroups import folder_usage, folders_of
from rollcall.sandbox.boxes.docker_engine import DockerEngine, listens, missing, why_not_here
from rollcall.sandbox.boxes.engine_builds import FailedBuilds, engine_build
from rollcall.sandbox.boxes.images import engine_image
from rollcall.sandbox.boxes.interior import HOME, USER, WAIT, box_environment
from rollcall.sandbox.boxes.supervised_program import (
    SupervisedProgram,
    SupervisedPrograms,
    borrow_supervisor,
    rlimits,
)
from rollcall.sandbox.process_supervisor import Confinement, ProcessSupervisor
from rollcall.schemas.errors import FailureCode, WorkFailed

LABEL = "rollcall.box"
SHM_BYTES = 16 << 20
WAITER = 65_533
"""The user of the first process alone: so no program of the box can make the kernel kill that
process first when memory is short (`oom_score_adj`)."""


class DockerBox(BoxCommands):
    """A box that is one container; `DockerDriver.open` makes it."""

    directory = HOME.encode()
    shown: Mapping[bytes, bytes] = {}

    def __init__(
        self, ident: str, engine: DockerEngine, supervisor: ProcessSupervisor, spec: Spec
    ) -> None:
        self.ident = ident
        self._engine = engine
        self._supervisor = supervisor
        self._spec = spec
        self._programs = SupervisedPrograms(
            supervisor,
            env=box_environment(spec),
            cwd=HOME,
            limits=rlimits(
                RLIMIT_FSIZE=spec.limits.file_bytes, RLIMIT_NOFILE=spec.limits.open_files
            ),
        )
        self._confinement = Confinement()
        self._folders: Mapping[str, Path] = {}
        self._open = True

    async def begin(self, image: str) -> None:
        """Start it. Raises WorkFailed: `box_unavailable`, `image`, `bad_config`."""
        first, environment = await self._engine.ask(
            lambda client: _started(client, image, self.ident, self._spec)
        )
        self._programs.env = box_environment(self._spec, environment)
        folders = self._folders = folders_of(first)
        self._confinement = Confinement(
            user=USER,
            cgroups=tuple(sorted({program_groups.entry(str(each)) for each in folders.values()})),
            group=str(folders.get("pids", "")),
            within=first,
            mounts=os.stat(f"/proc/{first}/ns/mnt").st_ino,
            seccomp=seccomp_filter.compiled(),
        )

    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> SupervisedProgram:
        return await self._programs.start(argv, env, self._confinement)

    async def listen(self, port: int) -> socket.socket:
        return await self._programs.listen(port, self._confinement)

    def entrance(self) -> Mapping[str, object]:
        return self._programs.entrance(self._confinement)

    async def usage(self) -> Usage:
        return folder_usage(self._folders)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            await self._engine.ask(lambda client: _removed(client, self.ident))
            await self._programs.end()
        finally:
            await self._supervisor.give_back()


class DockerDriver(Driver):
    """The driver that opens containers."""

    name = "docker"
    kept = True

    def __init__(self, image: str = "base") -> None:
        """Make a driver; `image` is used for specs without an image."""
        self._image = image
        self._engine = DockerEngine()
        self._failed = FailedBuilds()

    async def open(self, spec: Spec, ident: str = "") -> DockerBox:
        """Open a box. Raises WorkFailed: `box_unavailable` with a remedy, `image`, `bad_config`."""
        if why := why_not_here():
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, why, retriable=False)
        if spec.network or spec.mounts:
            msg = "a box of driver 'docker' has no network, and no directory of the host"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        ident = drawn_ident(ident)
        name = spec.image or self._image
        if build := spec.build:
            await self._engine.ask(
                lambda client: engine_build(client, name, build, self._failed), long=True
            )
        image = await self._engine.ask(lambda client: engine_image(client, name))
        supervisor = borrow_supervisor()
        box = DockerBox(ident, self._engine, supervisor, spec)
        try:
            await box.begin(image)
        except BaseException as error:
            taken = isinstance(error, WorkFailed) and error.code == FailureCode.BAD_CONFIG
            if taken:  # the container of this name belongs to another owner: do not remove it
                await supervisor.give_back()
            else:
                await asyncio.shield(box.close())
            raise
        return box

    def enforces(self) -> Mapping[str, str]:
        by = {
            "network": "namespace",
            "memory": "control group",
            "pids": "control group",
            "files": "a file system of its own",
            "disk": "tmpfs of a size",
        }
        if seccomp_filter.compiled():
            by |= {"seccomp": "libseccomp", "user": "a user without rights"}
        return by

    def lacks(self) -> Sequence[str]:
        found = [
            "disk: where a task may write its image, only an engine with quotas bounds all of it "
            "(overlay2 on xfs with pquota, btrfs, zfs); elsewhere `file_bytes` bounds each file"
        ]
        if not seccomp_filter.compiled():
            remedy = "`pip install 'rollcall[docker]'`"
            found.append(f"seccomp: every system call is allowed, also a user namespace; {remedy}")
        return found

    async def unavailable(self) -> str:
        if why := why_not_here():
            return why
        try:
            await self._engine.ask(lambda client: client.ping())
        except WorkFailed as error:
            return str(error)
        return ""

    async def found(self) -> Sequence[str]:
        """List the boxes, none without an engine. Raises WorkFailed if it does not answer."""
        return sorted(await self._engine.ask(_idents)) if listens() else []

    async def remove(self, ident: str) -> None:
        """Remove a box. Raises WorkFailed as `found` does."""
        ident = drawn_ident(ident)
        if listens():
            await self._engine.ask(lambda client: _removed(client, ident))


def _started(client: Any, image: str, ident: str, spec: Spec) -> tuple[int, list[str]]:
    """Start a container; return its first process's pid on this host and its image's variables."""
    limits = spec.limits
    places = {
        place: f"rw,exec,nosuid,nodev,size={limits.disk_bytes},uid={USER},gid={USER}"
        for place in (HOME, "/tmp")
    }
    try:
        container = _created(
            client,
            spec,
            image=image,
            command=["/bin/sh", "-c", f"exec {WAIT}"],
            name=f"rollcall-box-{ident}",
            labels={LABEL: ident},
            hostname="box",
            user=f"{WAITER}:{WAITER}",
            working_dir=HOME,
            environment={},
            entrypoint=[],
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            read_only=not spec.writable,
            ipc_mode="private",
            shm_size=min(SHM_BYTES, limits.disk_bytes),
            tmpfs=places,
            pids_limit=limits.processes or None,
            mem_limit=limits.memory_bytes or None,
            memswap_limit=limits.memory_bytes or None,
            nano_cpus=int(limits.cpus * 1_000_000_000) or None,
            stdin_open=False,
        )
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", 0) == 409:
            msg = f"there is a box {ident!r} on this host already"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False) from error
        raise
    container.start()
    for place in spec.writable:
        _give(container, place)
    container.reload()
    return int(container.attrs["State"]["Pid"]), container.attrs["Config"]["Env"] or []


def _created(client: Any, spec: Spec, **options: Any) -> Any:
    """Create a container; where the engine has quotas, with one on its writes outside tmpfs.

    The quota adds the image's size, since its content in writable places is copied.
    """
    if not (spec.writable and spec.limits.disk_bytes):
        return client.containers.create(**options)
    size = client.images.get(options["image"]).attrs["Size"] + spec.limits.disk_bytes
    try:
        return client.containers.create(**options, storage_opt={"size": str(size)})
    except Exception as error:
        if "storage-opt" not in str(error):
            raise
        return client.containers.create(**options)


def _give(container: Any, place: str) -> None:
    """Make the box's user the owner of a path and of the image's content there."""
    try:
        parts, _ = container.get_archive(place)
    except Exception as error:
        if not missing(error):
            raise
        container.put_archive("/", tar_streams.of_own_directories([place], USER))
        return
    above = posixpath.dirname(place.rstrip("/")) or "/"
    container.put_archive(above, tar_streams.owned_by(USER, b"".join(parts)))


def _removed(client: Any, ident: str) -> None:
    try:
        client.containers.get(f"rollcall-box-{ident}").remove(force=True, v=True)
    except Exception as error:
        if not missing(error):
            raise


def _idents(client: Any) -> list[str]:
    found = client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
    return [str(container.labels[LABEL]) for container in found]
