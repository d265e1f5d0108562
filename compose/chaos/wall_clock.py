"""A wall clock that chaos sets back, installed for the workers as their `sitecustomize`.

Python imports a module of that name at the start of every process, and this one is copied under it.
So the time of day that the product reads is moved, without root and without a hook in the product.
Kafka's client still reads the machine's own clock.
"""

import mmap
import os
import shutil
import struct
import time
from pathlib import Path

VARIABLE = "CHAOS_CLOCK"
"""The environment variable with the file of a process's clock."""
OFFSET = struct.Struct("<d")


class WallClock:
    """The clock of one worker, for the process that moves it."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(exist_ok=True)
        shutil.copyfile(__file__, directory / "sitecustomize.py")
        self.directory, self.path = directory, directory / f"{name}.clock"
        self.set(0.0)

    def set(self, offset_s: float) -> None:
        """Set the clock to this many seconds ahead of the machine's."""
        if not self.path.exists():
            self.path.write_bytes(OFFSET.pack(offset_s))
            return
        with self.path.open("r+b") as file:  # in place: running processes read these bytes
            file.write(OFFSET.pack(offset_s))

    def environment(self, path: str) -> dict[str, str]:
        """Return the variables of a process that follows it; `path` is its module path so far."""
        found = os.pathsep.join(filter(None, (str(self.directory), path)))
        return {VARIABLE: str(self.path), "PYTHONPATH": found}


def follow(path: str) -> None:
    """Have this process read the time of day as the machine's plus the offset in a clock's file."""
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    wall, wall_ns = time.time, time.time_ns

    def moved() -> float:
        return wall() + float(OFFSET.unpack_from(held)[0])

    def moved_ns() -> int:
        return wall_ns() + int(1e9 * OFFSET.unpack_from(held)[0])

    time.time, time.time_ns = moved, moved_ns


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    follow(os.environ[VARIABLE])
