"""The process of a service, and what is on record of it: `<home>/process.json`.

It is known by pid *and* start time, so a pid that was dealt again is nobody's.
"""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from compose.processes import holds_within, started
from compose.services.aot_cache import AotCache
from compose.services.service_errors import ServicesError
from compose.state_files import read_state
from schemas.errors import Refused
from schemas.whole_files import write_whole

log = structlog.get_logger()

GRACE_S = 20.0
RECORD = "process.json"


class Service(Protocol):
    """What it takes to run one of them in its folder."""

    @property
    def name(self) -> str: ...
    @property
    def home(self) -> Path: ...
    @property
    def aot(self) -> AotCache: ...
    def prepare(self) -> list[str]: ...
    def is_ready(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """The last process of a service; its ports outlive it, so that clients find the next one."""

    pid: int
    started: str
    port: int
    side_port: int
    """The controller's, or the management port."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return started(self.pid) == self.started

    def note(self, home: Path) -> None:
        """Put it on record."""
        write_whole(home / RECORD, json.dumps(asdict(self)))

    def end(self, *, grace_s: float = GRACE_S) -> bool | None:
        """True if it took SIGKILL, None if there was nothing to end; raises ServicesError."""
        if not self.lives:
            return None
        for sent, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sent)
            if holds_within(lambda: not self.lives, wait_s):
                return sent is signal.SIGKILL
        msg = f"process {self.pid} outlives SIGKILL; it hangs in the kernel, look at its disk"
        raise ServicesError(msg)


def on_record(home: Path) -> ServiceProcess | None:
    """The last process of the service that lives in a folder; None where there was none.

    What is no such record is none: it is said, and the next start writes another.
    """
    try:
        return read_state(home / RECORD, ServiceProcess)
    except Refused as error:
        log.warning("record_of_process_unreadable", error=str(error))
        return None
