"""Processes of this machine: start, wait, end, identify, measure memory.

psutil is not used: it tells the start of a process by the wall clock, and two processes of one pid
are told apart by boot and clock ticks here. The rest of it would replace ten lines.
"""

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

from rollcall.schemas.errors import Unfit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")
ChildProcess = subprocess.Popen[bytes]
PR_SET_PDEATHSIG = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CHILDREN: dict[int, ChildProcess] = {}
"""The children of this process, which it must reap when they end."""


def module(name: str, *arguments: str, python: str = "") -> list[str]:
    """Return the command that runs a module with a Python, by default this one; the working
    directory is not on its path.

    A child must find the same packages as its parent, whatever its working directory.
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
    """Start a process without stdin that appends to a log; raises OSError.

    It has its own session, so a Ctrl-C at our terminal does not reach it. Unless `outlives_us`, it
    is killed when the thread that starts it ends, for whatever reason.
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
    """Have the kernel kill this process when the thread that started it ends; survives an exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_in_new_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of a module in a new process; return or raise its result.

    The memory of all that it loads is freed with that process, which ends with the call, also if
    this is interrupted: a Ctrl-C reaches us alone. Raises Unfit if the process was killed.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    call = partial(function, *args, **kwargs)
    process = context.Process(target=_tell, args=(sender, call))
    resource_tracker.ensure_running()  # started here, as its start would undo the signal mask below
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the child
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
    """End all: SIGTERM, a grace period, then SIGKILL."""
    for process in running:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.02) -> bool:
    """Poll a condition until it holds; False if it does not hold in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


def started(pid: int) -> str | None:
    """Return a process's start: boot id and clock ticks since then. None if it has ended.

    A pid alone is no identity, as pids are reused.
    """
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may contain anything
    # A dying process holds its ports while other threads of it run, whatever its state
    if state in "ZX" and threads <= 1 and child is None:
        return None
    return f"{BOOT_ID.read_text().strip()}/{rest[18]}"


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the processes' resident memory, shared pages counted in proportion (PSS)."""
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
