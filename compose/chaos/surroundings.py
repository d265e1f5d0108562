"""Faults of a worker's environment while it runs: of its clock, its registry, its store and its
log.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import structlog

from rollcall.compose.chaos.faults import STORE, STRANGER, Fault
from rollcall.compose.chaos.victims import BriefVictim, PartVictim, to_registry
from rollcall.compose.chaos.wrong_registry import WrongRegistry
from rollcall.compose.cluster import Cluster
from rollcall.producers.kafka_publisher import HeldTransaction
from rollcall.schemas.errors import Unavailable
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


@dataclass
class OpenTransactionVictim(BriefVictim):
    """A victim that opens a transaction on every partition of one of our topics after the other."""

    cluster: Cluster
    name: str = STRANGER
    group: None = None
    unnamed: list[str] = field(default_factory=list)
    """Topics that it blocked without a report by anything that shows lag."""
    _begun: int = 0
    _held: HeldTransaction | None = None
    _topic: str = ""
    _named: bool = False

    def fit(self) -> bool:
        return True

    def begin(self, fault: Fault) -> None:
        topics = self._topics()
        self._topic, self._named = topics[self._begun % len(topics)], False
        self._begun += 1
        partitions = range(self.cluster.log.partitions(self._topic))
        name = f"chaos-{STRANGER}"
        try:
            self._held = HeldTransaction(self.cluster.client, name, self._topic, partitions)
        except Unavailable as away:
            log.warning("no_transaction", error=str(away))

    def during(self, fault: Fault, since_s: float) -> None:
        if self._held is None or self._named:
            return
        try:
            self._named = bool(self.cluster.log.open_transactions([self._topic]))
        except Unavailable as away:
            log.warning("transaction_not_seen", error=str(away))

    def end(self, fault: Fault) -> None:
        self.during(fault, fault.lasts_s)
        held, self._held = self._held, None
        if held is None:
            return
        held.abort()
        if not self._named:
            self.unnamed.append(self._topic)

    def _topics(self) -> Sequence[str]:
        topics = self.cluster.topics
        return topics.requests, topics.events, topics.trajectories
