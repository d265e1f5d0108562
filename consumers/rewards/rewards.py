"""The rewards group of one scoring id: reads trajectories, and writes them with rewards.

It scores the trajectories whose request names its scoring id or names none, and skips others.

A scorer that raises or hangs gives no reward, but a reason; the record is written all the same, so
that no later group waits for it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import WorkRole
from rollcall.consumers.rewards.async_scorers import AsyncScorers
from rollcall.producers.publisher import Publisher
from rollcall.schemas.bounds import fitting
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    FailureCode,
    ProgramFailed,
    TooLarge,
    Unavailable,
    WireError,
    WorkFailed,
)
from rollcall.schemas.headers import full_headers
from rollcall.schemas.ids import scored_id
from rollcall.schemas.messages import ScoredTrajectory, Trajectory
from rollcall.schemas.reduced_trajectory import reduced_forms, write_reduced_form
from rollcall.schemas.topics import Topics
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text, describe_exception

Score = Callable[[Trajectory, str, int, int], ScoredTrajectory]
"""Scores a trajectory, given its place in the log: topic, partition, offset.

The rewards of waiting scorers are left open.
"""
COLLECT_S = 0.05
"""Time of one wait for waiting scorers, if there is nothing else to do."""

log = structlog.get_logger()


class RewardsRole(WorkRole):
    """Scores trajectories: plain scorers at once, waiting ones in their event loop."""

    poll_s = 0.02

    def __init__(
        self,
        name: str,
        codec: Codec,
        topics: Topics,
        publisher: Publisher,
        score: Score,
        *,
        scoring_id: str = "default",
        guard: AbstractContextManager[object] | None = None,
        waiting: AsyncScorers | None = None,
    ) -> None:
        self.name = name
        self.codec = codec
        self.topics = [topics.trajectories]
        self.scored = topics.scored
        self.publisher = publisher
        self.score = score
        self.scoring_id = scoring_id
        self.guard = guard or nullcontext()
        self.waiting = waiting
        self.counts: Counter[str] = Counter()
        self._unsent: deque[tuple[ScoredTrajectory, Record]] = deque()
        self._waits = False

    def expects(self, topic: str) -> type:
        del topic
        return Trajectory

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        for record, trajectory in batch:
            if not scores_required(trajectory, self.scoring_id):
                self.counts["of_other_scorings"] += 1
                record.closed = True
                continue
            self._begin(record, trajectory)
            self._write_judged()
            if self._full():
                return

    def tick(self) -> None:
        """Write the finished scores, as far as they can be encoded now."""
        self._collect()
        self._write_judged()

    def each_judged(
        self, trajectories: Iterable[tuple[Record, Trajectory]]
    ) -> Iterator[tuple[Record, ScoredTrajectory]]:
        """Judge all of these, and yield each when it is finished: for readers without a loop."""
        for record, trajectory in trajectories:
            self._begin(record, trajectory)
            while self._full():
                self._collect(COLLECT_S)
            yield from self._taken()
        while self.in_flight():
            self._collect(COLLECT_S)
        yield from self._taken()

    def _taken(self) -> Iterator[tuple[Record, ScoredTrajectory]]:
        while self._unsent:
            scored, record = self._unsent.popleft()
            yield record, scored

    def waits(self, progress: PartitionProgress) -> bool:
        """Return True if the queue is full, for any partition."""
        del progress
        return self._full()

    def in_flight(self) -> int:
        return self.waiting.in_progress if self.waiting else 0

    def dropped(self, progress: PartitionProgress) -> None:
        if self.waiting:
            self.waiting.drop(progress.number)

    def close(self) -> None:
        if self.waiting:
            self.waiting.close()

    def _full(self) -> bool:
        return self.waiting is not None and self.waiting.full()

    def _begin(self, record: Record, trajectory: Trajectory) -> None:
        """Run the plain scorers, and hand the rest to the waiting ones."""
        scored = self.judge(record, trajectory)
        if self.waiting and self.waiting.wanted(scored):
            self.waiting.dispatch(scored, record)
        else:
            self._end(scored, record)

    def _collect(self, wait_s: float = 0.0) -> None:
        """Take finished results of waiting scorers."""
        if self.waiting:
            for scored, record in self.waiting.collect(wait_s):
                self._end(scored, record)

    def _end(self, scored: ScoredTrajectory, record: Record) -> None:
        self.counts["scored" if scored.total is not None else "without_reward"] += 1
        self._unsent.append((scored, record))

    def _write_judged(self) -> None:
        while self._unsent:
            scored, record = self._unsent[0]
            try:
                self.publish(scored, record)
            except Unavailable as error:
                if not self._waits:
                    log.warning("write_retried_later", error=str(error))
                self._waits = True
                return
            self._waits = False
            record.closed = True
            self._unsent.popleft()

    def judge(self, record: Record, trajectory: Trajectory) -> ScoredTrajectory:
        """Return the scores of the plain scorers for a trajectory that was read from this record.

        The rewards of waiting scorers are left open.
        """
        place = record.topic, record.partition, record.offset
        try:
            with self.guard:
                scored = self.score(trajectory, *place)
        except Exception as error:  # a user's scorer may raise anything, also one of our errors
            reason = str(error) if isinstance(error, ProgramFailed) else describe_exception(error)
            scored = ScoredTrajectory(self.scoring_id, trajectory, (), None, *place, reason)
        return scored

    def publish(self, scored: ScoredTrajectory, record: Record) -> None:
        """Write a scored trajectory; if it is too large, write a reduced form without a total."""
        try:
            self._write(scored, record, record.value, partial(self._write_barest, scored, record))
        except (TooLarge, WireError) as error:
            code = FailureCode.TOO_LARGE if isinstance(error, TooLarge) else FailureCode.UNWRITABLE
            reason = clean_text(f"{code}: {error}", REASON_CHARS)
            unscored = replace(scored, total=None, reason=reason, token_scores=())
            write_reduced_form(
                scored.trajectory,
                lambda bare: self._write(replace(unscored, trajectory=bare), record, None),
                error,
            )

    def _write_barest(self, scored: ScoredTrajectory, record: Record, error: WorkFailed) -> None:
        """Write the smallest form of a record that its topic refused."""
        *_, barest = reduced_forms(scored.trajectory)
        reason = clean_text(f"{error.code}: {error}", REASON_CHARS)
        unscored = replace(scored, trajectory=barest, total=None, reason=reason, token_scores=())
        self._write(unscored, record, None)

    def _write(
        self,
        scored: ScoredTrajectory,
        cause: Record,
        value: bytes | None,
        refused: Callable[[WorkFailed], None] | None = None,
    ) -> None:
        trajectory = scored.trajectory
        request = trajectory.request
        key = fitting((request.group_id if request else "") or trajectory.rollout_id)
        ce_id = scored_id(trajectory.rollout_id, trajectory.attempt, scored.scoring_id)
        self.publisher.send(
            self.scored,
            key,
            self.codec.encode_around(self.scored, scored, "trajectory", value),
            headers=full_headers("ScoredTrajectory", ce_id, self.name, key, trajectory.rollout_id),
            cause=cause,
            refused=refused,
        )


def scores_required(trajectory: Trajectory, scoring_id: str) -> bool:
    """Return True if a scoring has to score a trajectory; one without a request names none."""
    return trajectory.request is None or trajectory.request.asks_scoring(scoring_id)
