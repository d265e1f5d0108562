"""The free space that images and their builds must leave on a disk."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from rollcall.schemas.errors import Refused

DISK_FLOOR_BYTES = 2 << 30


def make_room(place: Path, removals: Iterable[Callable[[], object]], remedy: str) -> None:
    """Call removals in order until the disk has DISK_FLOOR_BYTES free.

    Raises Refused if there are no more removals.
    """
    waiting = iter(removals)
    while (free := shutil.disk_usage(place).free) < DISK_FLOOR_BYTES:
        remove = next(waiting, None)
        if remove is None:
            msg = f"{place} has {free:,} bytes free, {DISK_FLOOR_BYTES:,} are left at least{remedy}"
            raise Refused(msg)
        remove()
