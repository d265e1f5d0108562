"""Control groups of boxes: one folder for each, in every hierarchy that this process may write.

Version 2 where it is mounted alone, else version 1. The folders lie below `rollcall` at the top, so
that any process of the host finds them, and exist until they are removed, also after their maker
has ended. The `rollcall` folder bounds all boxes of the host together (`host_limits`).
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rollcall.sandbox import program_groups
from rollcall.sandbox.boxes.box import BoxLimits, Usage
from rollcall.sandbox.boxes.interior import TTL_S
from rollcall.schemas.errors import FailureCode, WorkFailed

ROOT = Path("/sys/fs/cgroup")
KERNEL = Path("/proc/sys/kernel")
OURS = "rollcall"
PERIOD_US = 100_000
GONE_S = 5.0
AGAIN_S = 0.005
CONTROLLERS = ("memory", "pids", "cpu")
UNBOUND = 1 << 60
"""A number of version 1 that is not below this stands for no bound."""
LARGEST_BYTES = 1 << 20
"""An upper bound on the size of a single allocation that is refused."""
RESERVED_SHARE = 8
"""All boxes together leave the host 1/8 of its memory (and half of its processes)."""


class Cgroups:
    """The control group folders of this host's boxes; false where none can be made."""

    def __init__(self, root: Path = ROOT) -> None:
        self._unified = (root / "cgroup.controllers").exists()
        self._places = _unified(root) if self._unified else _hierarchies(root)
        self._bind_all_boxes(host_limits(root))
        self._remove_lapsed()

    def __bool__(self) -> bool:
        return bool(self._places)

    def holds(self, controller: str) -> bool:
        """Return True if this controller bounds boxes."""
        return controller in self._places

    def together(self) -> Usage:
        """Return how much memory and how many processes all boxes may have; None is no bound."""
        memory = self._places.get("memory", Path())
        pids = self._places.get("pids", Path())
        bytes_ = _numbers(memory / "memory.max", memory / "memory.limit_in_bytes")
        processes = _numbers(pids / "pids.max")
        return Usage(memory_bytes=min(bytes_, default=None), processes=min(processes, default=None))

    def make(self, ident: str, limits: BoxLimits) -> tuple[str, ...]:
        """Make a box's folders; return the files that its processes' pids are written to.

        Raises WorkFailed: `box_unavailable`, or `bad_config` if the box already exists.
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
                raise WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True) from error
            msg = f"there is a box {ident!r} on this host already"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False) from error
        return tuple(program_groups.entry(str(folder)) for folder in folders)

    def programs(self, ident: str) -> str:
        """Return the folder below which each program of a box gets its own; empty if there is none.

        It is that of the `pids` controller: without its bound a group could grow while it is being
        killed.
        """
        place = self._places.get("pids")
        return str(place / ident) if place else ""

    def found(self) -> set[str]:
        """Return the names of all boxes that have a folder."""
        return {
            folder.name
            for place in self._places.values()
            for folder in place.iterdir()
            if folder.is_dir()
        }

    def usage(self, ident: str) -> Usage:
        """Return the resources that a box has used, as far as its folders record them."""
        return folder_usage({name: place / ident for name, place in self._places.items()})

    async def remove(self, ident: str) -> None:
        """Kill all processes in a box and remove its folders; do nothing if there are none."""
        give_up_at = time.monotonic() + GONE_S
        folders = {place / ident for place in self._places.values()}
        while folders := {folder for folder in folders if folder.exists()}:
            for folder in folders:
                for below in _groups(folder):
                    program_groups.remains(str(below))
            if time.monotonic() > give_up_at:
                return
            # A folder cannot be removed yet: its last process is counted for some milliseconds.
            await asyncio.sleep(AGAIN_S)

    def _bind_all_boxes(self, limits: BoxLimits) -> None:
        """Write the bounds of all boxes together; an existing lower bound stays."""
        for controller, place in self._places.items():
            for name, value in self._values(controller, limits).items():
                there = _number(place / name)
                if there is None or there > int(value):
                    with suppress(OSError):  # `together` reports the bounds in force
                        _write(place / name, value)

    def _remove_lapsed(self) -> None:
        """Remove folders of boxes that must have ended: no box outlives TTL_S.

        A killed worker leaves them where it had not yet written who holds the box.
        """
        for place in self._places.values():
            for folder in place.iterdir():
                with suppress(OSError):  # it was removed, or it is not empty
                    if folder.is_dir() and time.time() - folder.stat().st_ctime > TTL_S + GONE_S:
                        for below in _groups(folder):
                            below.rmdir()

    def _values(self, controller: str, limits: BoxLimits) -> Mapping[str, str]:
        """Return the values to write by file name; limits of 0 are left out."""
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


def host_limits(root: Path = ROOT) -> BoxLimits:
    """Return the limits of all boxes together on this host, or in the container we run in."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    memory += _numbers(root / "memory.max", root / "memory" / "memory.limit_in_bytes")
    pids = _numbers(KERNEL / "pid_max", KERNEL / "threads-max")
    pids += _numbers(root / "pids.max", root / "pids" / "pids.max")
    return BoxLimits(
        memory_bytes=min(memory) - min(memory) // RESERVED_SHARE, processes=min(pids) // 2
    )


def folder_usage(folders: Mapping[str, Path]) -> Usage:
    """Return the resources that a box has used, from its folders by controller; either version.

    OOM kills are attributed to the box only if it has reached its own bound: else the host was
    short of memory, or all boxes together were.
    """
    memory, pids = folders.get("memory"), folders.get("pids")
    if memory is None or pids is None:
        return Usage()
    used = [_number(memory / name) for name in ("memory.current", "memory.usage_in_bytes")]
    kills = [_field(memory / name, "oom_kill") for name in ("memory.events", "memory.oom_control")]
    return Usage(
        memory_bytes=used[1] if used[0] is None else used[0],
        processes=_number(pids / "pids.current"),
        oom_kills=max(kills) if _came_to_its_bound(memory) else 0,
    )


def _came_to_its_bound(memory: Path) -> bool:
    """Return True if a box ever ran out of memory; version 1 records only its peak usage."""
    most = _number(memory / "memory.max_usage_in_bytes")
    bound = _number(memory / "memory.limit_in_bytes")
    if most is None or bound is None:
        return _field(memory / "memory.events", "oom") > 0
    return most > bound - LARGEST_BYTES


def folders_of(pid: int, root: Path = ROOT) -> dict[str, Path]:
    """Return the folders that a process is in, by controller. Raises OSError if it is gone."""
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
    """Make our folder in each controller's own tree (version 1)."""
    places = {}
    for controller in CONTROLLERS:
        place = root / controller / OURS
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            if os.access(place, os.W_OK):
                places[controller] = place
    return places


def _unified(root: Path) -> dict[str, Path]:
    """Make our one folder and delegate the controllers to it (version 2)."""
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
    """Write a file if it exists: not every kernel accounts for swap. Raises OSError."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, value.encode())
        finally:
            os.close(file)


def _groups(folder: Path) -> list[Path]:
    """Return the folders of a box's programs, and then the box's own."""
    with suppress(OSError):
        return [*(each for each in folder.iterdir() if each.is_dir()), folder]
    return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _numbers(*paths: Path) -> list[int]:
    """Return the bounds in those of the files that exist and hold one."""
    numbers = (_number(path) for path in paths)
    return [number for number in numbers if number is not None and number < UNBOUND]


def _field(path: Path, name: str) -> int:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
