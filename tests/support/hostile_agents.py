"""Agents that do what nobody should; run in processes of their own, imported by path."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from typing import Any
from urllib.parse import urlsplit

Task = dict[str, Any]
CALLERS = 10


def said(url: str, key: str, text: str) -> str:
    """What the model answers to one message."""
    body = json.dumps({"model": "p", "messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, head)
    answer = json.load(urllib.request.urlopen(request))
    return str(answer["choices"][0]["message"]["content"])


def lends_its_sockets(task: Task, url: str, key: str) -> str:
    """What it forks twice holds its connections, one of them in the middle of a request."""
    where = urlsplit(url)
    held = []
    for begun in (b"", b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n"):
        held.append(socket.create_connection((where.hostname, where.port)))
        held[-1].sendall(begun)
        os.set_inheritable(held[-1].fileno(), True)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", task["config"]["mark"]]
    twice = "import subprocess, sys; subprocess.Popen(sys.argv[1:], close_fds=False)"
    numbers = [each.fileno() for each in held]
    subprocess.run([sys.executable, "-c", twice, *sleep], check=True, pass_fds=numbers)
    return said(url, key, "I have company")


def closes_its_output(task: Task, url: str, key: str) -> str:
    print("the last words", flush=True)
    os.close(1)
    os.close(2)
    return said(url, key, "quietly")


def leaves_its_callers(task: Task, url: str, key: str) -> None:
    """Some ask, and nobody waits for what they are told."""
    for number in range(CALLERS):
        text = f"caller {number}"
        threading.Thread(target=said, args=(url, key, text), daemon=True).start()
    said(url, key, "the first to be answered")
    sys.exit(0)


def removes_its_directory(task: Task, url: str, key: str) -> str:
    """And puts a link to another one in its place."""
    home = os.getcwd()
    os.chdir("/")
    shutil.rmtree(home)
    first = said(url, key, "without a home")
    os.symlink(task["config"]["precious"], home)
    return first


def has_much_to_remember(task: Task, url: str, key: str) -> str:
    """No program can be given so many variables."""
    for number in range(20):
        os.environ[f"NUMBER_{number}"] = str(number) * 1_000_000
    try:
        subprocess.run(["true"], check=True)
    except OSError as error:
        return said(url, key, type(error).__name__ + str(error.errno))
    return "it was started"


def talks(task: Task, url: str, key: str) -> str:
    """The decent one, for comparison."""
    first = said(url, key, "before")
    return said(url, key, f"then {said(url, key, f'after {first}')}")
