"""A client of the docker engine, by the library `docker`, whose calls run on two threads.

The engine must run on this host and the worker as root: programs enter a container's namespaces as
those of any other box (`rollcall.sandbox.namespaces`), without `docker exec`.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, TypeVar

from rollcall.schemas.errors import FailureCode, WorkFailed

TIMEOUT_S = 60
SOCKET = "/var/run/docker.sock"
Answer = TypeVar("Answer")
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="docker")
_BUILDS = ThreadPoolExecutor(1, thread_name_prefix="docker-build")


class DockerEngine:
    """The engine at `DOCKER_HOST`, or at the usual socket."""

    def __init__(self) -> None:
        self._client: Any = None

    async def ask(self, question: Callable[[Any], Answer], *, long: bool = False) -> Answer:
        """Call `question` with a client on a thread. Raises WorkFailed: `box_unavailable`.

        Long calls run one by one on a thread of their own, so they delay no others. Cancelling the
        caller does not stop a call.
        """
        threads = _BUILDS if long else _THREADS
        return await asyncio.get_running_loop().run_in_executor(threads, self._asked, question)

    def _asked(self, question: Callable[[Any], Answer]) -> Answer:
        docker = _library()
        try:
            if self._client is None:
                _reach(_host())
                self._client = docker.from_env(timeout=TIMEOUT_S, version="auto")
            return question(self._client)
        except docker.errors.ImageNotFound as error:
            msg = f"the docker engine says: {_why(error)}; `docker pull` or `docker load` brings "
            msg += "one, and `rollcall images list` names those of this host"
            raise WorkFailed(FailureCode.IMAGE, msg, retriable=False) from error
        except (docker.errors.DockerException, OSError) as error:
            where = os.environ.get("DOCKER_HOST", "its usual socket")
            msg = f"the docker engine at {where} (start one, or set DOCKER_HOST): {_why(error)}"
            raise _unavailable(msg) from error


def why_not_here() -> str:
    """Return why containers cannot be entered from this process; empty if they can."""
    host = os.environ.get("DOCKER_HOST", "unix://")
    if not host.startswith("unix://"):
        return f"the docker engine at {host} is not known to be on this host; name its unix socket"
    if os.getuid() != 0:
        return "programs are entered into containers by root alone; start the worker as root"
    return ""


def listens() -> bool:
    """Return True if an engine may be reachable: its socket and the library `docker` exist."""
    host = _host()
    there = not host.startswith("unix://") or os.path.exists(host.removeprefix("unix://"))
    return there and find_spec("docker") is not None


def missing(error: BaseException) -> bool:
    """Return True if the engine answered that the object does not exist."""
    return type(error).__name__ == "NotFound"


def _host() -> str:
    return os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"


def _reach(host: str) -> None:
    """Raise OSError if nothing listens: the library would leak its socket in that case."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_S)
            probe.connect(host.removeprefix("unix://"))


def _library() -> Any:
    try:
        import docker
    except ImportError as error:
        msg = "the library docker is not installed; `pip install 'rollcall[docker]'`"
        raise _unavailable(msg) from error
    return docker


def _why(error: BaseException) -> str:
    return str(getattr(error, "explanation", None) or error)[:500]


def _unavailable(message: str) -> WorkFailed:
    return WorkFailed(FailureCode.BOX_UNAVAILABLE, message, retriable=True)
