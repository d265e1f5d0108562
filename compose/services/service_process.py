"""The process of a service, its record `<home>/process.json`, and its ports.

A process is identified by pid *and* start time, so a reused pid is not mistaken for it.
"""

import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from rollcall.compose.files import read_state
from rollcall.compose.processes import started, wait_until
from rollcall.compose.services.service_errors import ServicesError
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.errors import Refused

log = structlog.get_logger()

GRACE_S = 20.0
RECORD = "process.json"


class Service(Protocol):
    """A service's program in its folder."""

    @property
    def name(self) -> str: ...
    @property
    def home(self) -> Path: ...
    def prepare(self) -> list[str]: ...
    def is_ready(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """The last process of a service; its ports are kept, so that clients find the next one."""

    pid: int
    started: str
    port: int
    side_port: int
    """The controller's port, or the management port."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return started(self.pid) == self.started

    def note(self, home: Path) -> None:
        """Write the record."""
        write_atomically(home / RECORD, json.dumps(asdict(self)))

    def end(self, *, grace_s: float = GRACE_S) -> bool | None:
        """End it; True if it took SIGKILL, None if it did not run; raises ServicesError."""
        if not self.lives:
            return None
        for sent, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sent)
            if wait_until(lambda: not self.lives, wait_s):
                return sent is signal.SIGKILL
        msg = f"process {self.pid} outlives SIGKILL; it hangs in the kernel, look at its disk"
        raise ServicesError(msg)


def on_record(home: Path) -> ServiceProcess | None:
    """Read the last process of the service in a folder; None if there was none.

    An invalid record counts as none, with a warning; the next start writes another.
    """
    try:
        return read_state(home / RECORD, ServiceProcess)
    except Refused as error:
        log.warning("process_record_unreadable", error=str(error))
        return None


def kept_or_free(old: int | None, taken: Collection[int]) -> int:
    """Return the old port if it is free, else another free one."""
    if old is None or old in taken or not is_free(old):
        return free_port(taken)
    return old


def free_port(taken: Collection[int]) -> int:
    """Return a free port below the kernel's ephemeral range: a client that keeps connecting to a
    port of that range without a listener can connect to itself, and hold the port.
    """
    draw = random.SystemRandom()
    while (port := draw.randrange(20_000, 32_000)) in taken or not is_free(port):
        pass
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like Java: a port in TIME_WAIT counts as free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
