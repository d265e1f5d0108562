"""The process that watches another; see `watchdog`. Begun with nothing but the standard library."""

import os
import select
import signal
import sys
import time

FOR_STACKS_S = 5.0


def watch(pid: int) -> None:
    """Read how many seconds the process may take until the next line; 0 is as long as it likes."""
    most_s = 0.0
    while select.select([0], [], [], most_s or None)[0]:
        said = os.read(0, 1 << 16)
        if not said:
            return  # it has ended
        most_s = float(said.split()[-1])
    os.kill(pid, signal.SIGABRT)
    time.sleep(FOR_STACKS_S)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
