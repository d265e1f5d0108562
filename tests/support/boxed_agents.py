"""Agents that live in boxes, and look for a way out; imported by path, in any Python."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

Task = dict[str, Any]


def said(url: str, key: str, text: str, given: str = "") -> str:
    """What the model answers to one message, asked with the line's own key or another."""
    body = json.dumps({"model": "p", "messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": f"Bearer {given or key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, head)
    answer = json.load(urllib.request.urlopen(request))
    return str(answer["choices"][0]["message"]["content"])


def tried(address: tuple[str, int]) -> str:
    """What comes of a connection."""
    try:
        socket.create_connection(address, 2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def status_of(url: str, key: str) -> int:
    try:
        said(url, key, "let me in")
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def looks_around(task: Task, url: str, key: str) -> str:
    """Tells what it found, and whom it could reach."""
    import sqlite3  # late: what it is imported from must be there

    try:
        name = socket.gethostbyname("example.com")
    except OSError as error:
        name = type(error).__name__
    config = task["config"]
    other = config.get("other_key", "another")
    first = said(url, key, "who am I?")
    found = {
        "url": url.partition("/r/")[0],
        "said": first,
        "ports": [tried(("127.0.0.1", port)) for port in config["ports"]],
        "outside": tried(("1.1.1.1", 80)),
        "name": name,
        "another": status_of(url.replace(key, other), other),
        "mixed": status_of(url, other),
        "user": os.getuid(),
        "directory": os.getcwd(),
        "home": os.environ["HOME"],
        "host": os.path.exists(config["host_file"]),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "processes": sorted(int(each) for each in os.listdir("/proc") if each.isdigit())[:2],
        "rights": [
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs"))
        ],
        "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:3],
        "database": sqlite3.sqlite_version != "",
        "child": subprocess.run(
            [sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=False
        ).stdout,
    }
    try:
        Path(sys.prefix, "written").write_text("x")
        found["prefix"] = "written"
    except OSError as error:
        found["prefix"] = type(error).__name__
    return json.dumps(found)


def stays(task: Task, url: str, key: str) -> str:
    """What it forks twice leads a session, ignores what it can, and holds a connection."""
    port = int(url.partition("/r/")[0].rpartition(":")[2])
    held = socket.create_connection(("127.0.0.1", port))
    held.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (1, 2, 3, 13, 15):
                signal.signal(number, signal.SIG_IGN)
            sleep = "import time; time.sleep(600)"
            held.set_inheritable(True)
            os.execv(sys.executable, [sys.executable, "-c", sleep, task["config"]["mark"]])
        os._exit(0)
    os.wait()
    return said(url, key, "I stay")


def floods(task: Task, url: str, key: str) -> str:
    """With connections, with what is no HTTP, with output; and asks when it has calmed down."""
    port = int(url.partition("/r/")[0].rpartition(":")[2])
    held = []
    for number in range(600):
        try:
            held.append(socket.create_connection(("127.0.0.1", port), 5))
            held[-1].sendall(b"\0" * 100 if number % 2 else b"POST /r/")
        except OSError:
            break
    print("x" * 3_000_000)
    for each in held:
        each.close()
    for _ in range(100):
        try:
            return said(url, key, "calm again")
        except OSError:
            threading.Event().wait(0.05)
    return "shut out"


def takes_the_port(task: Task, url: str, key: str) -> str:
    """Would listen where its own line does."""
    port = int(url.partition("/r/")[0].rpartition(":")[2])
    listener = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        return said(url, key, type(error).__name__)
    return "mine"


def edits(task: Task, url: str, key: str) -> None:
    """Brings its own tools: what the model says is run by the shell, where it lives."""
    seen = "what now?"
    for _ in range(3):
        command = said(url, key, seen)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        seen = f"{done.returncode} {done.stdout}"


def waits(task: Task, url: str, key: str) -> str:
    """For an answer that does not come."""
    stays(task, url, key)
    threading.Event().wait()
    return ""


def ends_it(task: Task, url: str, key: str) -> str:
    """By a step of its environment, as agents do that bring no tools."""
    body = json.dumps({"action": "ls"}).encode()
    head = {"Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/step", body, head)) as answer:
        assert json.load(answer)["truncated"]
    threading.Event().wait(1)
    return "still here"


CHAIN = "import os\nwhile True:\n    if os.fork(): os._exit(0)"
LASTING = "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\n"
LASTING += "time.sleep(600)"


def outstays(task: Task, url: str, key: str) -> str:
    """Has something run on at the end of its episode, and ends that by a step or by its own end."""
    how, mark = task["config"]["how"], task["config"]["mark"]
    program = {"daemon": LASTING, "chain": CHAIN}.get(how)
    if program and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", program, mark])
        os._exit(0)
    if program:
        os.wait()
    else:
        subprocess.Popen([sys.executable, "-c", LASTING, mark])
    if task["config"]["by"] == "step":
        body = json.dumps({"action": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}).encode()
        head = {"Authorization": f"Bearer {key}"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/step", body, head)).read()
        threading.Event().wait(5)  # none that ends with its episode comes so far
    return said(url, key, "done")
