"""Faults of a worker's environment while it runs: of its clock, its registry and its store."""

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog

from rollcall.compose.chaos.faults import STORE, Fault
from rollcall.compose.chaos.victims import BriefVictim, PartVictim, to_registry
from rollcall.compose.chaos.wrong_registry import WrongRegistry
from rollcall.schemas.private_folders import make_private

MOST_HOURS = 6.0
ASKS_WITHIN_S = 90.0
"""The time within which a starting worker on a busy machine asks its registry."""

log = structlog.get_logger()


@dataclass
class ClockVictim(PartVictim):
    """The wall clock of a running worker: set back by hours, and later corrected."""

    def fit(self) -> bool:
        return self.worker.fit()

    def begin(self, fault: Fault) -> None:
        hours = Random(f"clock/{fault.at_s}").uniform(0.1, MOST_HOURS)
        self.worker.clock.set(-3600 * hours)

    def end(self, fault: Fault) -> None:
        self.worker.clock.set(0.0)


@dataclass
class IdsVictim(PartVictim):
    """The registry as one worker sees it; the worker is killed, so that it must ask again.

    The fault's time counts from the first wrong answer: a worker asks some seconds after its start,
    and first for schemas that it only checks.
    """

    registry: WrongRegistry
    _leads_until: float | None = None
    """The latest time at which the right one is back; None while it is in place."""
    _asked: bool = False
    _lasts_s: float = 0.0
    _told_before: int = 0

    def fit(self) -> bool:
        return self._leads_until is None and self.worker.fit()

    def back(self) -> bool:
        return self._leads_until is None and self.worker.back()

    def begin(self, fault: Fault) -> None:
        if not self.registry.learn():
            log.warning("no_wrong_registry", why="the right one does not answer")
            return
        self._told_before, self._asked = self.registry.told, False
        self._lasts_s = fault.lasts_s
        self._leads_until = time.monotonic() + ASKS_WITHIN_S
        self.worker.proxy.lead(to_registry(self.worker.name), self.registry.port)
        self.worker.kill()

    def end(self, fault: Fault) -> None:
        self.look()

    def look(self) -> None:
        if self._leads_until is None:
            return
        if not self._asked and self.registry.told > self._told_before:
            self._asked, self._leads_until = True, time.monotonic() + self._lasts_s
        if time.monotonic() > self._leads_until:
            self.worker.proxy.lead(to_registry(self.worker.name), None)
            self._leads_until = None


class StoreVictim(BriefVictim):
    """The object store: a folder behind a symlink, which leads elsewhere during the fault."""

    name = STORE
    group = None

    def __init__(self, objects: Path) -> None:
        """Put the folder behind a link; its contents are kept."""
        self._link, self._data = objects, objects.with_suffix(".data")
        self._nothing = objects.with_suffix(".away")
        if objects.exists():
            objects.rename(self._data)
        make_private(self._data)
        self._nothing.touch()
        self._lead_to(self._data)

    def fit(self) -> bool:
        return True

    def begin(self, fault: Fault) -> None:
        self._lead_to(self._nothing)

    def end(self, fault: Fault) -> None:
        self._lead_to(self._data)

    def _lead_to(self, target: Path) -> None:
        """Redirect the link atomically, so that no object is stored in a wrong place."""
        link = self._link.with_suffix(".link")
        link.symlink_to(target)
        link.replace(self._link)
