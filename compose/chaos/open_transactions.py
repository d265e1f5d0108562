"""A foreign producer that holds transactions open, which blocks all records behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from rollcall.compose.chaos.faults import STRANGER, Fault
from rollcall.compose.chaos.victims import BriefVictim
from rollcall.compose.cluster import Cluster
from rollcall.producers.kafka_publisher import HeldTransaction
from rollcall.schemas.errors import Unavailable

log = structlog.get_logger()


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
