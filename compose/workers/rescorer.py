"""Scoring outside the rewards group: it reads a range and writes to a chosen sink."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.rescoring import Rescoring, RewardSink, rescore
from rollcall.consumers.log.protocols import Record
from rollcall.producers.publisher import flush_all
from rollcall.schemas.bounds import checked_scoring
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster
    from rollcall.consumers.rewards.rewards import RewardsRole
    from rollcall.producers.publisher import Publisher

FLUSH_S = 60.0
POLL_EVERY = 500
"""The number of trajectories between two checks of the acks."""


@dataclass(frozen=True, slots=True)
class Rescorer:
    """A rescoring: its scorers, its scoring id, and the sink of its rewards."""

    scorers: Sequence[str]
    scoring_id: str = ""
    """The scoring id; by default made from the scorers, so that a repetition has the same."""
    parquet: Path | None = None
    dry_run: bool = False
    success_at: float = 1.0

    def rescore(self, cluster: "Cluster", selection: Selection) -> Rescoring:
        """Score a range again and compare; raises Refused before anything is written."""
        scoring_id = checked_scoring(self.scoring_id or _default_id(self.scorers))
        if self.parquet and self.dry_run:
            msg = "--dry-run writes nothing, so it goes without --parquet"
            raise Refused(msg)
        publisher = cluster.log.publisher(bulk=True)
        main = threading.current_thread() is threading.main_thread()
        factory = WorkerFactory(
            cluster.log, cluster.codec, cluster.topics, cluster.settings, watched=main
        )
        rewards = factory.scoring("rescore", publisher, self.scorers, scoring_id)
        to = str(self.parquet) if self.parquet else cluster.topics.scored
        rescoring = Rescoring(scoring_id, "" if self.dry_run else to)
        sink = self._sink(rewards, publisher)
        with closing(rewards):
            rescore(selection, rescoring, rewards.each_judged, sink, self.success_at)
        return rescoring

    @contextmanager
    def _sink(self, rewards: "RewardsRole", publisher: "Publisher") -> Iterator[RewardSink]:
        """Yield the sink of rewards: none, a Parquet file, or the topic."""
        if self.dry_run:
            yield lambda scored, record: None
        elif self.parquet:
            from rollcall.consumers.tables.parquet import rewards_file

            with rewards_file(self.parquet) as add:
                yield lambda scored, record: add(scored)
        else:
            numbers = count(1)

            def publish(scored: ScoredTrajectory, record: Record) -> None:
                rewards.publish(scored, record)
                if not next(numbers) % POLL_EVERY:
                    publisher.poll()

            yield publish
            flush_all(publisher, FLUSH_S, "rewards", "it is safe to do it again")


def _default_id(scorers: Sequence[str]) -> str:
    return "rescore-" + "+".join(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in scorers)
