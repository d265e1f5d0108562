"""Rehearsal of an agent, which finds its lazy imports so that they are imported before the fork.

It is imported by the fork server, and uses the standard library alone. A child plays one rollout
against a stand-in for the endpoint, and reports the modules that it has then, and nothing else.
"""

import http.server
import importlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

TASK = {"prompt": "rehearse", "system": "", "seed": 0, "limits": {}, "config": {}}
STEP = {"text": "", "reward": 0.0, "terminated": True, "truncated": False, "info": ""}


def rehearse(adapter: ModuleType) -> None:
    """Import the modules that a rollout would; `adapter.REHEARSAL` has the answers by path."""
    before = set(sys.modules)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with suppress(BaseException):  # only the imports count, not its result
                play(adapter)
            names = json.dumps([name for name in sys.modules if name not in before])
            with os.fdopen(writing, "w") as told:
                told.write(names)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        names = json.loads(told.read() or "[]")
    os.waitpid(child, 0)
    for name in names:
        with suppress(Exception):  # some are made at run time, and have no file
            importlib.import_module(name)


def play(adapter: ModuleType) -> None:
    """Play one rollout with its output discarded."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    answers: Mapping[str, Any] = {"/v1/step": STEP, "/v1/task": TASK, **adapter.REHEARSAL}

    class StandIn(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path, {})).encode()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    adapter.run(TASK, f"http://127.0.0.1:{server.server_port}", "rehearsal")
