"""Scored trajectories that can be trained on, which rules take groups and rewards from."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import ScoredTrajectory, Trajectory, TrajectoryRef
from rollcall.schemas.messages import Sequence as TokenSequence
from rollcall.schemas.packed import ids_of, mask_of

RECORDED, SHARED = "recorded", "shared"
"""The sources of samples that another run requested."""

ScoredPlace = tuple[int, int]
"""Partition and offset."""

LIMITS = frozenset(
    {
        FailureCode.TURN_LIMIT,
        FailureCode.TOKEN_LIMIT,
        FailureCode.TOO_LONG,
        FailureCode.DEADLINE,
        FailureCode.AGENT_DEADLINE,
    }
)
"""Codes of rollouts that ended at a limit: their samples are complete, but may be unscored."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A scored trajectory that can be trained on, for one policy."""

    scored: ScoredTrajectory
    partition: int
    offset: int
    policy_index: int
    """The index of our policy among the trajectory's policies."""
    reward: float
    min_version: int
    """The lowest version of the tokens that our policy sampled."""
    length: int
    """The number of tokens that our policy sampled, over all sequences."""
    uses: int = 0
    """The number of earlier uses; above 0 it is consumed, and admission has counted it."""
    compared_in: str = ""
    """The group that it is compared in, if that is not its own."""
    borrowed: str = ""
    """`recorded` or `shared` if another run requested it; its versions then belong to that run."""

    @property
    def fresh(self) -> bool:
        """True if this use consumes the record."""
        return not self.uses and self.borrowed != RECORDED

    @property
    def group(self) -> str:
        return self.compared_in or group_of(self.scored)

    @property
    def task_id(self) -> str:
        """The task id of its request; empty if there is none."""
        request = self.scored.trajectory.request
        return request.task.task_id if request else ""

    @property
    def end(self) -> str:
        """The end of the rollout: `finished`, or the limit that it ended at, one of `LIMITS`."""
        return limit_of(self.scored.trajectory) or "finished"

    def ref(self, topic: str) -> TrajectoryRef:
        trajectory = self.scored.trajectory
        return TrajectoryRef(
            topic, self.partition, self.offset, trajectory.rollout_id, trajectory.attempt
        )


def versions_of(sequences: Iterable[TokenSequence], policy_index: int) -> set[int]:
    """Return the versions that sampled the policy's tokens."""
    versions: set[int] = set()
    for sequence in sequences:
        versions.update(ids_of(sequence.versions)[mine(sequence, policy_index)].tolist())
    return versions


def sampled_tokens(sequences: Iterable[TokenSequence], policy_index: int) -> int:
    return sum(int(mine(sequence, policy_index).sum()) for sequence in sequences)


def mine(sequence: TokenSequence, policy_index: int) -> NDArray[np.bool_]:
    """Return a mask of the tokens that this policy sampled, bool [T]."""
    ours = mask_of(sequence.policy_index) == policy_index
    both: NDArray[np.bool_] = ours & (mask_of(sequence.loss_mask) == 1)
    return both


def group_of(scored: ScoredTrajectory) -> str:
    """Return the group id; a rollout without one is a group of its own."""
    request = scored.trajectory.request
    return (request.group_id if request else "") or f"alone:{scored.trajectory.rollout_id}"


def group_size_of(scored: ScoredTrajectory) -> int:
    request = scored.trajectory.request
    return request.group_size if request and request.group_id else 1


def limit_of(trajectory: Trajectory) -> str:
    """Return the limit that a rollout ended at, one of `LIMITS`; empty for none."""
    ended = trajectory.status != "finished" and trajectory.code in LIMITS
    return trajectory.code if ended else ""
