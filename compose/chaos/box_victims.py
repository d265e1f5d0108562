"""Kills of boxes, and of the engine that runs containers.

A box ends with its first process, as when the host runs out of memory or a user kills by pid; its
worker is not notified. Boxes are found by their leases, including warm ones without a borrower.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rollcall.compose.chaos.faults import BOXES, ENGINE, KILL, Fault
from rollcall.compose.chaos.own_engine import LOOK_EVERY_S, OwnEngine
from rollcall.compose.chaos.victims import BriefVictim
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.boxes.bubblewrap import MARK
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.process_tree import children

GROUP = "environments"
"""The group whose progress shows that lost boxes are replaced."""


@dataclass
class BoxVictim(BriefVictim):
    """A random box of the workers, drawn by the fault's time."""

    leases: Leases
    engine: OwnEngine | None = None
    name: str = BOXES
    group: str = GROUP
    killed: int = 0
    _looked: float = 0.0
    _seen: list[int] = field(default_factory=list)

    def fit(self) -> bool:
        """Return True if there is a box; checked at intervals."""
        if time.monotonic() > self._looked + LOOK_EVERY_S:
            self._seen, self._looked = self._first_processes(), time.monotonic()
        return bool(self._seen)

    def begin(self, fault: Fault) -> None:
        """Send SIGKILL to the first process of a box; do nothing if all have just ended."""
        first = self._first_processes()
        if first and _killed(Random(f"box/{fault.at_s}").choice(first)):
            self.killed += 1

    def _first_processes(self) -> list[int]:
        """Return the first processes of all boxes that workers hold, ordered by name."""
        there = first_processes() | (self.engine.first_processes() if self.engine else {})
        held = [lease.ident for lease in self.leases.all() if self.leases.is_live(lease)]
        return [there[ident] for ident in held if there.get(ident)]


@dataclass
class EngineVictim(BriefVictim):
    """The engine of this run; its containers end when it is restarted."""

    engine: OwnEngine
    name: str = ENGINE
    group: str = GROUP

    def fit(self) -> bool:
        return self.engine.answers()

    def back(self) -> bool:
        return self.fit()

    def begin(self, fault: Fault) -> None:
        if fault.kind == KILL:
            self.engine.kill()
        else:
            self.engine.send(signal.SIGSTOP)

    def end(self, fault: Fault) -> None:
        if fault.kind == KILL:
            self.engine.begin()
        else:
            self.engine.send(signal.SIGCONT)

    def look(self) -> None:
        """Raise ServicesError if it has ended by itself."""
        self.engine.look()


@dataclass(frozen=True, slots=True)
class BoxesLeft:
    """The boxes and leases that remain after every worker has ended."""

    boxes: Sequence[str] = ()
    leases: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.boxes or self.leases)


def boxes_left(leases: Leases, engine: OwnEngine | None) -> BoxesLeft:
    """Return boxes of these leases on this host, and leases without a box."""
    found = set(first_processes()) | set(asyncio.run(driver("bubblewrap").found()))
    found |= set(asyncio.run(driver("local").found()))
    found |= set(engine.first_processes()) if engine else set()
    ours = sorted(ident for ident in found if leases.is_of_here(ident))
    return BoxesLeft(ours, sorted(lease.ident for lease in leases.all()))


def first_processes() -> dict[str, int]:
    """Return the host's pids of the first processes of all namespace boxes."""
    found: dict[str, int] = {}
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            name = cmdline.read_bytes().partition(b"\0")[0].decode(errors="replace")
            if name.startswith(MARK):
                below = children(int(cmdline.parent.name))
                found |= {name.removeprefix(MARK): pid for pid in below[:1]}
    return found


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
