"""How full a disk may become of what boxes are made of."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from schemas.errors import Refused

DISK_FLOOR_BYTES = 2 << 30


def make_room(place: Path, removals: Iterable[Callable[[], object]], remedy: str) -> None:
    """Where a disk has less than its floor, remove one after the other, no more than there must.

    Raises Refused where nothing is left to remove.
    """
    waiting = iter(removals)
    while (free := shutil.disk_usage(place).free) < DISK_FLOOR_BYTES:
        remove = next(waiting, None)
        if remove is None:
            msg = f"{place} has {free:,} bytes free, {DISK_FLOOR_BYTES:,} are left at least{remedy}"
            raise Refused(msg)
        remove()
