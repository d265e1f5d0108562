"""A control group for each program of a box, below that of the box; the standard library alone.

All processes that a program has started are in its group, also orphans that were adopted, so they
can be killed at once. A walk from parents to children would be slower than a fork bomb. Also
imported by path, as `rollcall.sandbox.process_tree` is.
"""

import os
import signal
import time
from contextlib import suppress

AGAIN_S = 0.005
GIVE_UP_S = 0.2
"""Seconds that `end` waits until the kernel has removed killed processes."""


def entry(folder: str) -> str:
    """Return the file to which a process of one thread writes 0 to join a group.

    In version 1 it is the file for threads: a write to the one for processes waits for every core
    of the machine (8 to 19 ms measured here, 0.2 ms for a thread).
    """
    threads = os.path.join(folder, "tasks")
    return threads if os.path.exists(threads) else os.path.join(folder, "cgroup.procs")


def group_of(box: str, pid: int) -> str:
    """Return the folder of a program, named by its pid on the host; empty if boxes have none."""
    return os.path.join(box, str(pid)) if box else ""


def made(folder: str) -> int:
    """Make a group; return a descriptor to which a process writes 0 to join. Raises OSError."""
    os.mkdir(folder)
    return os.open(entry(folder), os.O_WRONLY | os.O_CLOEXEC)


def kill(folder: str) -> None:
    """Kill all processes in a group at once; none can start there afterwards."""
    if _written(folder, "cgroup.kill", b"1"):
        return
    _written(folder, "pids.max", b"0")  # version 1 kills one by one
    with suppress(OSError), open(os.path.join(folder, "cgroup.procs")) as file:
        for pid in file.read().split():
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def remains(folder: str) -> bool:
    """Remove a group if it is empty, else kill its processes and return True."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        kill(folder)
        return True
    return False


def end(folder: str) -> None:
    """Kill all processes in a group and remove it; if that takes too long its box removes it."""
    until = time.monotonic() + GIVE_UP_S
    kill(folder)
    while remains(folder) and time.monotonic() < until:
        time.sleep(AGAIN_S)


def _written(folder: str, name: str, value: bytes) -> bool:
    try:
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, value)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
