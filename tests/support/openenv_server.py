"""A real OpenEnv server in a process of its own, with an echo that some words misuse."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from tests.support.command_line import ROOT
from tests.support.waiting import until

PATIENCE_S = 120.0
"""Its imports alone take seconds, and minutes where many share a machine."""
LOOPBACK = build_opener(ProxyHandler({}))


class Served:
    """The server's process, and where it is."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.url = url

    def kill(self) -> None:
        """End it as the kernel would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def is_there(self) -> bool:
        assert self.process.poll() is None, "the server has ended by itself"
        with suppress(URLError, OSError):
            return LOOPBACK.open(f"{self.url}/health", timeout=1).status == 200
        return False


@contextmanager
def openenv_server(port: int, words: Path, sessions: int = 8) -> Iterator[Served]:
    """Serve until the test is over; what it says goes to the file `words`."""
    command = [sys.executable, "-m", "tests.support.openenv_server", str(port), str(sessions)]
    with words.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    served = Served(process, f"http://127.0.0.1:{port}")
    try:
        until(served.is_there, PATIENCE_S, lambda: words.read_text()[-2000:])
        yield served
    finally:
        process.kill()
        process.wait(10)


def serve(port: int, sessions: int) -> None:
    """Serve an environment that counts what it is told."""
    import time
    from typing import Any

    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Told(Action):
        message: str
        times: int = 1

    class Echoed(Observation):
        echo: str
        turn: int

    class Echo(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id="", step_count=0)

        def reset(self, seed: int | None = None, lap: int = 0, **_: Any) -> Echoed:
            self._state = State(episode_id=f"{seed}/{lap}", step_count=0)
            return Echoed(echo=f"seed {seed}", turn=0)

        def step(self, action: Told, timeout_s: float | None = None, **_: Any) -> Echoed:
            match action.message:
                case "boom":
                    raise ValueError(action.message)
                case "hang":
                    time.sleep(600)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
            self._state.step_count += 1
            return Echoed(
                echo=action.message * action.times,
                turn=self._state.step_count,
                reward=0.5,
                done=action.message == "end",
            )

        @property
        def state(self) -> State:
            return self._state

    app = create_fastapi_app(Echo, Told, Echoed, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
