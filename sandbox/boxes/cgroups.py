"""Control groups of boxes: one folder for each, in every hierarchy that this process may write.

Version 2 where it is mounted alone, else version 1. The folders lie below `rollcall` at the top, so
that anybody on the host finds them, and outlive whoever made them until they are removed.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sandbox import program_groups
from sandbox.boxes.box import BoxLimits, Usage
from schemas.errors import WorkFailed

ROOT = Path("/sys/fs/cgroup")
OURS = "rollcall"
PERIOD_US = 100_000
GONE_S = 5.0
AGAIN_S = 0.005
CONTROLLERS = ("memory", "pids", "cpu")


class Cgroups:
    """Makes, reads and removes the folders; empty where none can be made."""

    def __init__(self, root: Path = ROOT) -> None:
        self._unified = (root / "cgroup.controllers").exists()
        self._places = _unified(root) if self._unified else _hierarchies(root)

    def __bool__(self) -> bool:
        return bool(self._places)

    def holds(self, controller: str) -> bool:
        """Whether boxes are bound by it."""
        return controller in self._places

    def make(self, ident: str, limits: BoxLimits) -> tuple[str, ...]:
        """Make a box's folders; the files that its processes are written to.

        Raises WorkFailed: `box_unavailable`, or `bad_config` where there is such a box already.
        """
        folders = sorted({place / ident for place in self._places.values()})
        made: list[Path] = []
        try:
            for folder in folders:
                folder.mkdir()
                made.append(folder)
            for controller, place in self._places.items():
                for name, value in self._values(controller, limits).items():
                    _write(place / ident / name, value)
        except OSError as error:
            for folder in made:
                folder.rmdir()
            if not isinstance(error, FileExistsError):
                msg = f"no control group can be made for a box: {error}"
                raise WorkFailed("box_unavailable", msg, retriable=True) from error
            msg = f"there is a box {ident!r} on this host already"
            raise WorkFailed("bad_config", msg, retriable=False) from error
        return tuple(program_groups.entry(str(folder)) for folder in folders)

    def programs(self, ident: str) -> str:
        """The folder below which each program of a box gets its own; empty where there is none.

        It is that of the controller which counts processes: without it a group could grow while it
        is killed.
        """
        place = self._places.get("pids")
        return str(place / ident) if place else ""

    def found(self) -> set[str]:
        """The names of all boxes that have a folder."""
        return {
            folder.name
            for place in self._places.values()
            for folder in place.iterdir()
            if folder.is_dir()
        }

    def usage(self, ident: str) -> Usage:
        """What a box has taken, as far as its folders tell."""
        return folder_usage({name: place / ident for name, place in self._places.items()})

    async def remove(self, ident: str) -> None:
        """Kill all that runs in a box and remove its folders; silent where there are none."""
        give_up_at = time.monotonic() + GONE_S
        folders = {place / ident for place in self._places.values()}
        while folders := {folder for folder in folders if folder.exists()}:
            for folder in folders:
                for below in _groups(folder):
                    program_groups.remains(str(below))
            if time.monotonic() > give_up_at:
                return
            # The last process is counted for some milliseconds after its end.
            await asyncio.sleep(AGAIN_S)

    def _values(self, controller: str, limits: BoxLimits) -> Mapping[str, str]:
        """What is written where; what is not bound is left out."""
        bytes_, pids = limits.memory_bytes, limits.processes
        quota = int(limits.cpus * PERIOD_US)
        if controller == "pids":
            return {"pids.max": str(pids)} if pids else {}
        if controller == "memory" and bytes_:
            if self._unified:
                return {"memory.max": str(bytes_), "memory.swap.max": "0"}
            return {
                "memory.limit_in_bytes": str(bytes_),
                "memory.memsw.limit_in_bytes": str(bytes_),
            }
        if controller == "cpu" and quota:
            if self._unified:
                return {"cpu.max": f"{quota} {PERIOD_US}"}
            return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
        return {}


def folder_usage(folders: Mapping[str, Path]) -> Usage:
    """What a box has taken, as far as its folders tell, by controller; of either version."""
    memory, pids = folders.get("memory"), folders.get("pids")
    if memory is None or pids is None:
        return Usage()
    used = [_number(memory / name) for name in ("memory.current", "memory.usage_in_bytes")]
    events = [_field(memory / name, "oom_kill") for name in ("memory.events", "memory.oom_control")]
    return Usage(
        memory_bytes=used[1] if used[0] is None else used[0],
        processes=_number(pids / "pids.current"),
        oom_kills=max(events),
    )


def folders_of(pid: int, root: Path = ROOT) -> dict[str, Path]:
    """The folders that a process is in, by controller. Raises OSError where it is gone."""
    found = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.removeprefix("name=").split(","):
            below = root / name if name else root
            place = below / path.lstrip("/")
            if path != "/" and (place / "cgroup.procs").exists():
                found.update(dict.fromkeys(CONTROLLERS, place) if not name else {name: place})
    return found


def _hierarchies(root: Path) -> dict[str, Path]:
    """Version 1: our folder in each controller's own tree."""
    places = {}
    for controller in CONTROLLERS:
        place = root / controller / OURS
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            if os.access(place, os.W_OK):
                places[controller] = place
    return places


def _unified(root: Path) -> dict[str, Path]:
    """Version 2: one folder, which must have been given the controllers."""
    place = root / OURS
    with suppress(OSError):
        place.mkdir(exist_ok=True)
        for folder in (root, place):
            given = (folder / "cgroup.controllers").read_text().split()
            wanted = [f"+{name}" for name in CONTROLLERS if name in given]
            (folder / "cgroup.subtree_control").write_text(" ".join(wanted))
        if os.access(place, os.W_OK):
            return {name.removeprefix("+"): place for name in wanted}
    return {}


def _write(path: Path, value: str) -> None:
    """As far as this kernel counts it: swap is not counted everywhere. Raises OSError."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, value.encode())
        finally:
            os.close(file)


def _groups(folder: Path) -> list[Path]:
    """List the folders of a box's programs, and then its own."""
    with suppress(OSError):
        return [*(each for each in folder.iterdir() if each.is_dir()), folder]
    return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
