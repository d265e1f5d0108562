"""The announced versions of a policy, and those that its rollouts carry: a fold of the log.

A rollout carries the versions that have sampled its tokens, and the one that it is pinned to. It
counts from its request until its trajectory is scored and no checkpoint to resume from would read
it again. Its own time begins with its first command, which a pause or a quota may delay without
bound; so after its first answer it counts as open no longer than its deadline plus ten minutes, by
the clock of the log. A start that did not count does so for ever. The counts may be too high for a
while, but never too low.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

import numpy as np

from rollcall.schemas.bounds import VERSIONS_END
from rollcall.schemas.messages import (
    AttemptStarted,
    DeadlinePassed,
    Event,
    ModelAnswered,
    PolicyVersion,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.packed import ids_of
from rollcall.trainer.rules.samples import versions_of
from rollcall.trainer.weights.weights_needs import WeightsNeeds

LINGERS_MS = 600_000
END = (RolloutFinished, RolloutCancelled, DeadlinePassed)


@dataclass(slots=True)
class _Carrying:
    """One rollout that counts as open."""

    lasts_ms: int
    """The time for which it may go on after its last answer, and its outcome be read."""
    until_ms: float = inf
    """Without bound before its first answer."""
    attempt: int = 0
    versions: set[int] = field(default_factory=set)


@dataclass(eq=False)
class VersionUse:
    """The fold, for one policy; the time of a record is its append time."""

    policy_id: str
    now_ms: int = 0
    """The time of the last announcement. If the log's clock is set back, this is too: later
    announcements then have their true ages, and earlier ones are kept longer."""
    announced_ms: dict[int, int] = field(default_factory=dict)
    """The time of the last announcement of each version."""
    precisions: dict[int, str] = field(default_factory=dict)
    newest: PolicyVersion | None = None
    """The highest announced version."""
    unscored: Counter[int] = field(default_factory=Counter)
    """The number of unscored trajectories that carry each version."""
    buffered: Counter[int] = field(default_factory=Counter)
    """The number of scored ones that no step of the newest checkpoint has consumed."""
    replayed: Counter[int] = field(default_factory=Counter)
    """The number of consumed ones that may be trained on again."""
    _rollouts: dict[str, _Carrying] = field(default_factory=dict)
    _asked: set[tuple[str, int, int]] = field(default_factory=set)
    """Pinned requests that have not begun: rollout, offset, version."""

    def take_request(self, request: RolloutRequest, offset: int) -> None:
        """Take a request that may not have been started; called before the journal is read."""
        _, pinned = request.versions_for(self.policy_id)
        if pinned >= 0:
            self._asked.add((request.rollout_id, offset, pinned))

    def take_version(self, version: PolicyVersion, at_ms: int) -> None:
        """Take an announcement; those of other policies and invalid version numbers are ignored."""
        if version.policy_id != self.policy_id or not 0 <= version.version < VERSIONS_END:
            return
        self.announced_ms[version.version] = at_ms
        self.precisions[version.version] = version.precision
        if self.newest is None or version.version >= self.newest.version:
            self.newest = version

    def take_event(self, event: Event, at_ms: int, *, is_out: bool) -> None:
        """Take one entry of the journal, in the order of its partition.

        `is_out` states for an end that its trajectory has been written; other ends are ignored.
        """
        body, rollout = event.body, self._rollouts.get(event.rollout_id)
        if isinstance(body, RolloutStarted):
            self._start(event.rollout_id, body)
        elif rollout is None:
            return
        elif isinstance(body, AttemptStarted):
            rollout.attempt = max(rollout.attempt, event.attempt)
        elif isinstance(body, ModelAnswered):
            self._answer(rollout, body, at_ms)
        elif isinstance(body, END) and is_out and not _is_older(event, rollout):
            del self._rollouts[event.rollout_id]

    def _answer(self, rollout: _Carrying, body: ModelAnswered, at_ms: int) -> None:
        # It may have been held back before its first command.
        began_ms = 0 if rollout.until_ms == inf else rollout.until_ms
        rollout.until_ms = max(began_ms, at_ms + rollout.lasts_ms)
        if body.policy_id == self.policy_id:
            rollout.versions.update(np.unique(ids_of(body.versions)).tolist())

    def _start(self, rollout_id: str, body: RolloutStarted) -> None:
        lasts_ms = int(1000 * body.request.limits.rollout_timeout_s) + LINGERS_MS
        rollout = self._rollouts.setdefault(rollout_id, _Carrying(lasts_ms))
        _, pinned = body.request.versions_for(self.policy_id)
        if pinned >= 0:
            rollout.versions.add(pinned)
            self._asked.discard((rollout_id, body.request_offset, pinned))

    def take_trajectory(self, trajectory: Trajectory) -> None:
        """Take a trajectory that may not have been scored."""
        self.unscored.update(self._carried(trajectory))

    def take_scored(self, scored: ScoredTrajectory, *, is_read: bool) -> None:
        """Take a scored one that may be trained on; `is_read`: the newest
        checkpoint has consumed it."""
        carried = self._carried(scored.trajectory)
        (self.replayed if is_read else self.buffered).update(carried)

    def _carried(self, trajectory: Trajectory) -> set[int]:
        """Return the versions of the policy that have sampled its tokens."""
        if self.policy_id not in trajectory.policies:
            return set()
        index = trajectory.policies.index(self.policy_id)
        return versions_of(trajectory.sequences or (), index)

    def requested(self) -> Counter[int]:
        """Count by version the pinned requests that have not begun."""
        return Counter(version for _, _, version in self._asked)

    def open(self) -> Counter[int]:
        """Count by version the open rollouts that carry it."""
        return Counter(
            version
            for rollout in self._rollouts.values()
            if rollout.until_ms > self.now_ms
            for version in rollout.versions
        )

    def needs(self, *, checkpoints: Collection[int], awaited: Collection[int]) -> WeightsNeeds:
        """Return all reasons to keep files, together with checkpoints and awaited evaluations."""
        return WeightsNeeds(
            self.now_ms,
            self.announced_ms,
            checkpoints=checkpoints,
            open=self.open(),
            buffered=self.buffered,
            awaited=awaited,
            replayed=self.replayed,
            requested=self.requested(),
            unscored=self.unscored,
        )


def _is_older(event: Event, rollout: _Carrying) -> bool:
    """Return True for the end of an attempt that was followed by another: it
    does not end the rollout."""
    return isinstance(event.body, RolloutFinished) and event.attempt < rollout.attempt
