"""The resources that trees of processes use now, from /proc; for boxes without a cgroup."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rollcall.sandbox import process_tree
from rollcall.sandbox.boxes.box import Usage

CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime, cstime, counted from after the name, which may hold any characters."""
RSS_FIELD = 21
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def of_trees(roots: Iterable[int]) -> Usage:
    """Sum the usage of processes and all descendants; ended children of orphans are missed."""
    below = list(roots)
    cpu_s, memory, alive = 0.0, 0, 0
    while below:
        pid = below.pop()
        below += process_tree.children(pid)
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
            cpu_s += sum(map(int, fields[CPU_FIELDS])) * _TICK_S
            memory += int(fields[RSS_FIELD]) * _PAGE_BYTES
            alive += 1
    return Usage(cpu_s, memory, alive)
