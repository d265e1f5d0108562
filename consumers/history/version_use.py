"""Which versions of a policy are announced, and which its rollouts carry: a fold of the log.

A rollout carries the versions that have sampled its tokens, and the one that it is pinned to. It
counts from its request until what came of it is scored, and no checkpoint that training goes on
from would have it read again. Its own time begins with its first command, which a pause or a quota
may hold back for as long as it likes; so once it is answered it counts as open no longer than its
deadline and ten minutes allow, by the clock of the log, and a start that did not count is none for
ever. Too many may count for a while; too few never do.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

import numpy as np

from schemas.bounds import VERSIONS_END
from schemas.messages import (
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
from schemas.packed import ids_of
from trainer.samples import versions_of
from trainer.weights_needs import WeightsNeeds

LINGERS_MS = 600_000
END = (RolloutFinished, RolloutCancelled, DeadlinePassed)


@dataclass(slots=True)
class _Carrying:
    """One rollout that counts as open."""

    lasts_ms: int
    """So long after its last answer it may go on, and what comes of it be read."""
    until_ms: float = inf
    """No bound before its first answer."""
    attempt: int = 0
    versions: set[int] = field(default_factory=set)


@dataclass(eq=False)
class VersionUse:
    """The fold, of one policy; a record's time is when it was appended."""

    policy_id: str
    now_ms: int = 0
    """When anything was announced last. Where the log's clock is set back, it goes back too: what
    was announced since is as young as it is, and what was before stays the longer."""
    announced_ms: dict[int, int] = field(default_factory=dict)
    """When each version was announced last."""
    precisions: dict[int, str] = field(default_factory=dict)
    newest: PolicyVersion | None = None
    """The highest that is announced."""
    unscored: Counter[int] = field(default_factory=Counter)
    """By version how many trajectories carry it that are not scored."""
    buffered: Counter[int] = field(default_factory=Counter)
    """The same of those that are scored, and no step of the newest checkpoint has consumed."""
    replayed: Counter[int] = field(default_factory=Counter)
    """The same of those that were consumed, and may be trained on again."""
    _rollouts: dict[str, _Carrying] = field(default_factory=dict)
    _asked: set[tuple[str, int, int]] = field(default_factory=set)
    """Of pinned requests that have not begun: rollout, offset, version."""

    def take_request(self, request: RolloutRequest, offset: int) -> None:
        """One request that nobody is known to have taken up; before the journal that may tell."""
        _, pinned = request.versions_for(self.policy_id)
        if pinned >= 0:
            self._asked.add((request.rollout_id, offset, pinned))

    def take_version(self, version: PolicyVersion, at_ms: int) -> None:
        """One announcement; others' are passed over, and numbers that no version has."""
        if version.policy_id != self.policy_id or not 0 <= version.version < VERSIONS_END:
            return
        self.announced_ms[version.version] = at_ms
        self.precisions[version.version] = version.precision
        if self.newest is None or version.version >= self.newest.version:
            self.newest = version

    def take_event(self, event: Event, at_ms: int, *, is_out: bool) -> None:
        """One entry of the journal, in the order of its partition.

        Of an end that `is_out` the trajectory has been written; any other is none yet.
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
        """One that nobody is known to have scored."""
        self.unscored.update(self._carried(trajectory))

    def take_scored(self, scored: ScoredTrajectory, *, is_read: bool) -> None:
        """One that is trained on, or may be again; `is_read`: the newest checkpoint has it."""
        carried = self._carried(scored.trajectory)
        (self.replayed if is_read else self.buffered).update(carried)

    def _carried(self, trajectory: Trajectory) -> set[int]:
        """The versions of the policy that have sampled its tokens."""
        if self.policy_id not in trajectory.policies:
            return set()
        index = trajectory.policies.index(self.policy_id)
        return versions_of(trajectory.sequences or (), index)

    def requested(self) -> Counter[int]:
        """By version how many requests are pinned to it that have not begun."""
        return Counter(version for _, _, version in self._asked)

    def open(self) -> Counter[int]:
        """By version how many rollouts carry it that have begun."""
        return Counter(
            version
            for rollout in self._rollouts.values()
            if rollout.until_ms > self.now_ms
            for version in rollout.versions
        )

    def needs(self, *, checkpoints: Collection[int], awaited: Collection[int]) -> WeightsNeeds:
        """What of all this keeps files, beside checkpoints and what is evaluated."""
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
    """Whether an attempt has finished that another has followed: nothing ends by it."""
    return isinstance(event.body, RolloutFinished) and event.attempt < rollout.attempt
