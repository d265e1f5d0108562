"""Ending a process's descendants; needs only the standard library.

Programs in other interpreters import it by path. A process that adopts orphans
(PR_SET_CHILD_SUBREAPER) becomes the parent of every descendant whose parent has ended, also of
those that forked twice or lead a session. So no descendant can leave its tree.
"""

import ctypes
import os
import signal
import time
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
AGAIN_S = 0.005
GIVE_UP_S = 5.0
"""Time after which killing is given up: a process that waits for a broken disk does not end."""
LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants; an exec keeps this, children do not inherit it."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_on_parent_death(parent: int, with_signal: int) -> None:
    """Request a signal for the death of our parent; exit if it has died already."""
    LIBC.prctl(PR_SET_PDEATHSIG, with_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children(pid: int) -> list[int]:
    """Return the children of a process, with those that are dead and not yet collected."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def kill_tree(root: int) -> None:
    """Stop a process and its descendants, so that they start no new ones, then kill them."""
    stopped, fresh = {root}, {root}
    _signal(root, signal.SIGSTOP)
    while fresh:
        # Processes may have started others before the signal reached them.
        fresh = {child for pid in stopped for child in children(pid)} - stopped
        stopped |= fresh
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_children() -> None:
    """Kill all descendants: the children of a killed process become ours, and are killed next."""
    until = time.monotonic() + GIVE_UP_S
    while (left := children(os.getpid())) and time.monotonic() < until:
        for pid in left:
            kill_tree(pid)
        time.sleep(AGAIN_S)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def end_on_sigterm() -> None:
    """Let SIGTERM end our descendants first, then this process."""

    def end(*_: object) -> NoReturn:
        end_children()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def guard(server: int) -> int:
    """Wait for a child to end, and kill its descendants; return its exit code like a shell."""
    status = 0
    while True:
        try:
            pid, found = os.waitpid(-1, 0)
        except ChildProcessError:
            return status if status >= 0 else 128 - status
        if pid == server:
            status = os.waitstatus_to_exitcode(found)
            end_children()


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
