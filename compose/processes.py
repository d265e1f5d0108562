"""Processes of this machine: started, waited for, ended, told from others, weighed."""

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from schemas.errors import Unfit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")
ChildProcess = subprocess.Popen[bytes]
PR_SET_PDEATHSIG = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CHILDREN: dict[int, ChildProcess] = {}
"""The processes that this very process has started; somebody must collect them when they end."""


def module(name: str, *arguments: str, python: str = "") -> list[str]:
    """The command that runs a module with a Python, or with this one; the directory it stands in is
    not looked at.

    What is spawned must find the packages that its parent has, wherever it works.
    """
    return [os.path.abspath(python) if python else sys.executable, "-P", "-m", name, *arguments]


def spawn(
    command: list[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    outlives_us: bool = False,
) -> ChildProcess:
    """Start a process that hears nothing and writes to the end of a log; raises OSError.

    It has a session of its own, so that a Ctrl-C at our terminal does not reach it, and unless it
    outlives us it is killed when the thread that starts it ends, whatever ends that.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
            preexec_fn=None if outlives_us else die_with_parent,
        )
    _CHILDREN[child.pid] = child
    return child


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends; holds on after an exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a function of a module returns or raises, called in a process of its own.

    The memory of all that it loads goes with that process, which ends with the call, also where
    this is interrupted: a Ctrl-C is for us alone. Raises Unfit where the process was killed.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    call = partial(function, *args, **kwargs)
    process = context.Process(target=_tell, args=(sender, call))
    resource_tracker.ensure_running()  # or else starting it would undo what follows
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it is born deaf
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    sender.close()
    try:
        found, error = receiver.recv()
    except EOFError as gone:
        msg = f"the process that was to {function.__name__!r} was killed; was there memory for it?"
        raise Unfit(msg) from gone
    finally:
        receiver.close()
        process.kill()
        process.join()
    if error is not None:
        raise error
    return cast("R", found)


def _tell(sender: "Connection[tuple[object, Exception | None], None]", call: partial[R]) -> None:
    die_with_parent()
    try:
        told: tuple[object, Exception | None] = call(), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        told = None, error
    sender.send(told)


def end(running: Collection[ChildProcess], grace_s: float) -> None:
    """SIGTERM to all, some time to finish, then SIGKILL; nothing is left running."""
    for process in running:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def holds_within(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.02) -> bool:
    """Ask until it holds, and wait a little between; False where it has not held in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


def started(pid: int) -> str | None:
    """When a process started: boot id and clock ticks since. None when it has ended.

    A pid alone names nobody for long, pids are dealt again.
    """
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold anything
    # While other threads of a dying process run on, it holds its ports, whatever its state says
    if state in "ZX" and threads <= 1 and child is None:
        return None
    return f"{BOOT_ID.read_text().strip()}/{rest[18]}"


def memory_bytes(pids: Iterable[int]) -> int:
    """The sum of the processes' resident memory now, shared pages counted once each (PSS)."""
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
