"""New rewards for recorded trajectories, and their agreement with the old ones.

The judge and the sink are those of the rewards group; only the reader differs. Written under a
scoring id of their own, the rewards do not reach the trainer. A repeated rescoring writes them
twice, which is harmless: the first of each rollout and scoring id counts.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rollcall.consumers.history.reading.ranges import extent_of, range_behind
from rollcall.consumers.history.reading.selection import FirstOfEach, Selection, read_paced
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import ScoredTrajectory, Trajectory

TOLERANCE = 1e-9
LISTED = 20


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout that one scoring counts as a success, or as positive, and the other does not."""

    rollout_id: str
    attempt: int
    old: float
    new: float


@dataclass(slots=True)
class Agreement:
    """A fold of pairs of total rewards, the old scoring's first."""

    scoring_id: str
    """The id of the old scoring."""
    success_at: float = 1.0
    compared: int = 0
    """The number of trajectories that both scorings have a reward for."""
    agree: int = 0
    """The number of these whose rewards differ by at most 1e-9."""
    sum_of_differences: float = 0.0
    succeed_now: int = 0
    fail_now: int = 0
    signs_flipped: int = 0
    only_old: int = 0
    only_new: int = 0
    neither: int = 0
    flips: list[Flip] = field(default_factory=list)
    """The first trajectories whose success or sign differs between the scorings."""

    def take(self, rollout_id: str, attempt: int, old: float | None, new: float | None) -> None:
        """Note one trajectory; None means no reward."""
        if old is None or new is None:
            self.only_old += old is not None
            self.only_new += new is not None
            self.neither += old is None and new is None
            return
        self.compared += 1
        self.agree += abs(new - old) <= TOLERANCE
        self.sum_of_differences += new - old
        succeeded, succeeds = old >= self.success_at, new >= self.success_at
        self.succeed_now += succeeds and not succeeded
        self.fail_now += succeeded and not succeeds
        turned = old * new < 0
        self.signs_flipped += turned
        if (turned or succeeded != succeeds) and len(self.flips) < LISTED:
            self.flips.append(Flip(rollout_id, attempt, old, new))

    @property
    def mean_difference(self) -> float:
        """The mean of new minus old; 0 if nothing was compared."""
        return self.sum_of_differences / self.compared if self.compared else 0.0


FAILED_LISTED = 20
PICKED = ("scoring_id", "trajectory.rollout_id", "trajectory.attempt", "total")

Judge = Callable[[Iterable[tuple[Record, Trajectory]]], Iterable[tuple[Record, ScoredTrajectory]]]
"""Scores trajectories, each with the record it was read from, in order of completion."""
RewardSink = Callable[[ScoredTrajectory, Record], None]
"""Takes scored trajectories, with the record that each was read from."""


@dataclass(frozen=True, slots=True)
class UnscoredTrajectory:
    """A finished trajectory without a reward."""

    rollout_id: str
    attempt: int
    reason: str


@dataclass(slots=True)
class Rescoring:
    """A fold of the new scores, and the result of the comparison."""

    scoring_id: str
    to: str
    """The destination of the rewards; empty for a dry run."""
    trajectories: int = 0
    rewarded: int = 0
    unfinished: int = 0
    """Rollouts that did not finish; their reward is unknown."""
    failed: int = 0
    """Trajectories without a reward because the scorer raised or timed out."""
    first_failed: list[UnscoredTrajectory] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    seconds: float = 0.0
    totals: dict[tuple[str, int], float | None] = field(default_factory=dict)
    """The total reward by rollout and attempt."""

    def take(self, scored: ScoredTrajectory) -> None:
        trajectory = scored.trajectory
        name = trajectory.rollout_id, trajectory.attempt
        self.totals[name] = scored.total
        self.trajectories += 1
        if scored.total is not None:
            self.rewarded += 1
        elif trajectory.status != "finished":
            self.unfinished += 1
        else:
            self.failed += 1
            if self.failed <= FAILED_LISTED:
                self.first_failed.append(UnscoredTrajectory(*name, scored.reason))

    def plain(self) -> dict[str, Any]:
        """Return all but the single rewards, as JSON values."""
        values = asdict(replace(self, totals={}))
        del values["totals"]
        for row, agreement in zip(values["agreements"], self.agreements, strict=True):
            row["mean_difference"] = agreement.mean_difference
        return values


def rescore(
    selection: Selection,
    rescoring: Rescoring,
    judge: Judge,
    sink: AbstractContextManager[RewardSink],
    success_at: float,
) -> None:
    """Score the trajectories of a range again, write the scores, and compare with the old ones.

    Raises Refused, before anything is written, for an empty range.
    """
    history, began = selection.history, time.monotonic()
    trajectories = selection.trajectories()
    # Determined before the first reward is written, so that our own are not compared.
    since = range_behind(selection.span.since_ms)
    before = extent_of(history.log, history.topics.scored, since)
    with sink as write:
        for record, scored in judge(trajectories):
            rescoring.take(scored)
            write(scored, record)
    old = read_paced(history.log, before, selection.pace)
    rescoring.agreements = _agreements(history.codec, old, rescoring.totals, success_at)
    rescoring.seconds = time.monotonic() - began


def _agreements(
    codec: Codec,
    old: Iterable[Record],
    totals: Mapping[tuple[str, int], float | None],
    success_at: float,
) -> list[Agreement]:
    """Return one agreement per old scoring, over its first record of every trajectory."""
    agreements: dict[str, Agreement] = {}
    firsts = FirstOfEach[tuple[str, str, int]](tuple)
    for record in old:
        with suppress(WireError):  # a reader in a group buries it
            scoring_id, rollout_id, attempt, total = codec.pick(
                record.value, ScoredTrajectory, *PICKED
            )
            name = rollout_id, attempt
            if name in totals and firsts.add((scoring_id, *name)):
                agreement = agreements.setdefault(scoring_id, Agreement(scoring_id, success_at))
                agreement.take(*name, total, totals[name])
    return [agreements[scoring_id] for scoring_id in sorted(agreements)]
