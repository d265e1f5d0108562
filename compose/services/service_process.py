"""The process of a service, and its record `<home>/process.json`.

It is identified by pid *and* start time, so a reused pid is not mistaken for it.
"""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from rollcall.compose.processes import started, wait_until
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.state_files import read_state
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
