"""Agents for tests, each a function as a user would write it; they run in processes of their own.

A file of its own, without an import of ours: it is imported by path.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

Task = dict[str, Any]


def says(task: Task, url: str, key: str) -> str:
    print(task["say"], file=sys.stderr)
    return str(task["say"])


def tells_surroundings(task: Task, url: str, key: str) -> str:
    import json

    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]]
    return json.dumps(
        {
            "environment": dict(os.environ),
            "descriptors": links,
            "directory": os.getcwd(),
            "leads": os.getpid() == os.getsid(0) == os.getpgrp(),
            "hash": hash("a word"),
            "input": sys.stdin.read(),
        }
    )


def ends_as_told(task: Task, url: str, key: str) -> None:
    how = task["how"]
    if isinstance(how, int) and how < 0:
        os.kill(os.getpid(), -how)
    if how == "raises":
        msg = "it does not like the task"
        raise ValueError(msg)
    sys.exit(how)


def prints(task: Task, url: str, key: str) -> None:
    os.write(1, b"the first words\n")
    for _ in range(task["mebibytes"]):
        written = 0
        while written < 1 << 20:
            written += os.write(1, b"x" * ((1 << 20) - written))
    os.write(2, b"the last words\n")


def waits(task: Task, url: str, key: str) -> None:
    print("waiting", flush=True)
    time.sleep(600)


def has_a_family(task: Task, url: str, key: str) -> None:
    """A child, one in a session of its own, one whose parent has gone, one that ignores signals."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", task["mark"]]
    deaf = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    subprocess.Popen([sys.executable, "-c", deaf + "time.sleep(600)", task["mark"]])
    twice = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", twice, *sleep], check=True)
    print("ready", flush=True)
    if task.get("ends"):
        return
    time.sleep(600)


def kills_its_server(task: Task, url: str, key: str) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
