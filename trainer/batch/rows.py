"""The rows of a batch: samples laid out as sequences masked to the tokens of our policy.

Shapes: N trajectories, T tokens of a row. Rows stay in log order. All denominators are computed
over the whole batch before it is split: each row carries its final weight, so the gradients of
micro-batches are summed, never averaged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.ids import split_continued_id
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.aggregates import token_weights
from rollcall.trainer.rules.rewards import Floats, Ints, Rewards, rewards_of
from rollcall.trainer.rules.samples import SHARED, Sample, mine
from rollcall.trainer.rules.teacher_scores import teacher_logprobs


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence of one trajectory, masked to the tokens of our policy; arrays are [T]."""

    trajectory: int
    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantages: Floats
    """0 where the mask is 0."""
    reward: float
    weight: float
    """The factor of each sampled token's loss; see `aggregates.token_weights`."""
    entropy: float
    """The coefficient of each sampled token's entropy bonus."""
    uniform: Floats
    """The coefficient of KL(uniform ‖ policy) on each token; 0 where the mask is 0."""
    seen: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Results of extra forward passes before the gradient, where a rule needs them: `prox`, `ref`,
    `ewma`, `snapshot`, `noted`, `entropy`."""
    off_policy_text: int = 0
    """1 for text of another policy, tokenised for ours: its tokens have no log-probability of a
    sampler, so the trainer's at the step's start is taken for μ."""
    teacher: NDArray[np.float32] | None = None
    """A teacher's log-probabilities, nan where it gave none; set if a rule needs them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a step, with values per trajectory."""

    rows: tuple[BatchRow, ...]
    rewards_N: Floats
    advantages_N: Floats
    lengths_N: Ints
    min_versions_N: Ints
    """-1 for trajectories of other runs."""
    names: tuple[str, ...] = ()
    """The id under which each trajectory was first requested."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of the step, such as `turns_kept`."""

    @property
    def tokens(self) -> int:
        return int(self.lengths_N.sum())


def lay_out(
    samples: Sequence[Sample], config: LearnerConfig, vocabulary: int
) -> tuple[Batch, Rewards]:
    """Return rows with advantages 0, in the order of the samples, and the rewards as scored.

    Sequences without a token of our policy are left out; a trajectory counts once, however many
    sequences it has. Raises IndexError for a token outside the model's vocabulary.
    """
    scored = rewards_of(samples, config.rules.advantage.everything_needed)
    weights_N = token_weights(config.aggregate, scored.lengths_N, config.aggregate_norm)
    rows = [
        row
        for number, sample in enumerate(samples)
        for row in _rows(number, sample, float(weights_N[number]), config.rules.teacher)
    ]
    _require_known(rows, vocabulary)
    batch = Batch(
        tuple(rows),
        scored.totals_N,
        np.zeros(len(samples)),
        scored.lengths_N,
        np.array([sample.min_version for sample in samples], dtype=np.int64),
        tuple(split_continued_id(sample.scored.trajectory.rollout_id)[0] for sample in samples),
    )
    return batch, scored


def _rows(number: int, sample: Sample, weight: float, teacher: str) -> Iterator[BatchRow]:
    """Yield the trajectory's sequences in which our policy has sampled."""
    sequences = sample.scored.trajectory.sequences or ()
    masks = [mine(sequence, sample.policy_index) for sequence in sequences]
    taught = teacher_logprobs(sample.scored, masks, teacher) if teacher else None
    for at, (sequence, mask) in enumerate(zip(sequences, masks, strict=True)):
        if not mask.any():
            continue
        yield BatchRow(
            number,
            ids_of(sequence.token_ids),
            mask,
            logprobs_of(sequence.behaviour_logprobs),
            np.full(len(mask), -1, np.int32) if sample.borrowed else ids_of(sequence.versions),
            np.zeros(len(mask), dtype=np.float64),
            sample.reward,
            weight,
            0.0,
            np.zeros(len(mask), dtype=np.float64),
            off_policy_text=int(sample.borrowed == SHARED),
            teacher=taught[at] if taught else None,
        )


def _require_known(rows: Sequence[BatchRow], vocabulary: int) -> None:
    """Raise IndexError for a token that the model has no embedding for.

    On a GPU such a token raises later, and every later call fails too.
    """
    for b, row in enumerate(rows):
        if not 0 <= row.token_ids.min() <= row.token_ids.max() < vocabulary:
            wrong = next(each for each in row.token_ids.tolist() if not 0 <= each < vocabulary)
            msg = f"row {b} has token {wrong}, and the model has tokens 0 to {vocabulary - 1}"
            raise IndexError(msg)
