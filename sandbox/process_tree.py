"""How a process ends all that it started, and all that those started; the standard library alone.

Imported by path too, by programs that run in interpreters of others. Whoever adopts orphans
(PR_SET_CHILD_SUBREAPER) becomes the parent of whatever below it has lost its own, also of what has
forked twice or leads a session: nothing that was started below it is ever anywhere else.
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
"""So long what is to end is asked to; a process inside a broken disk or driver hears nothing."""
LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on what is orphaned below us is ours; kept through an exec, not by children."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_on_parent_death(parent: int, with_signal: int) -> None:
    """Get a signal when our parent dies, and leave now where it has died already."""
    LIBC.prctl(PR_SET_PDEATHSIG, with_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children(pid: int) -> list[int]:
    """The processes whose parent a process is, dead ones that nobody collected among them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def kill_tree(root: int) -> None:
    """Stop a process and all below it, then kill them: what is stopped starts nothing new."""
    stopped, fresh = {root}, {root}
    _signal(root, signal.SIGSTOP)
    while fresh:
        # Those stopped earlier may have started more before the signal came to them.
        fresh = {child for pid in stopped for child in children(pid)} - stopped
        stopped |= fresh
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_children() -> None:
    """Kill until nobody is left: what a killed one leaves behind becomes ours, and is next."""
    until = time.monotonic() + GIVE_UP_S
    while (left := children(os.getpid())) and time.monotonic() < until:
        for pid in left:
            kill_tree(pid)
        time.sleep(AGAIN_S)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def end_on_sigterm() -> None:
    """From now on SIGTERM ends our children first, then us."""

    def end(*_: object) -> NoReturn:
        end_children()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def guard(server: int) -> int:
    """Wait for a child to end, and end what it leaves behind; returns its code, as shells do."""
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
