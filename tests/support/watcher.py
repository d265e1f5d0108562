"""The process that watches another; see `watchdog`. Begun with nothing but the standard library."""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

FOR_STACKS_S = 5.0


def watch(pid: int) -> None:
    """Read how many seconds the process may take until the next line; 0 is as long as it likes."""
    most_s = 0.0
    while select.select([0], [], [], most_s or None)[0]:
        said = os.read(0, 1 << 16)
        if not said:
            return  # it has ended
        most_s = float(said.split()[-1])
    print(where(pid), file=sys.stderr, flush=True)
    os.kill(pid, signal.SIGABRT)
    time.sleep(FOR_STACKS_S)
    os.kill(pid, signal.SIGKILL)


def where(pid: int) -> str:
    """Where the main thread of a process is, and what it has begun: of 100 threads and more, the
    stacks that are printed lack it."""
    main = Path(f"/proc/{pid}/task/{pid}")
    said = [f"the main thread of {pid} answers nobody"]
    for name in ("wchan", "syscall", "children"):
        with suppress(OSError):
            said.append(f"{name}: {(main / name).read_text().strip()}")
    for child in said[-1].partition("children: ")[2].split():
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            said.append(f"{child}: {words[:200].decode(errors='replace')}")
    return "\n  ".join(said)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
