"""Conversion of samples to the rows of a batch, with advantages and weights.

Shapes: N trajectories, T tokens of a row. Rows stay in log order. All denominators are computed
over the whole batch before it is split: each row carries its final weight, so the gradients of
micro-batches are summed, never averaged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.ids import split_continued_id
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.batch.uniform import first_of_turns
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.aggregates import token_weights
from rollcall.trainer.rules.rewards import Advantages, Bonuses, Floats, Ints, Rewards, rewards_of
from rollcall.trainer.rules.samples import SHARED, Sample, mine
from rollcall.trainer.rules.staleness import stale_weight
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


Scoring = Callable[[Batch, Rewards], tuple[Batch, Rewards]]
"""A function that adds the results of extra passes to a batch and its rewards."""


def make_batch(
    samples: Sequence[Sample],
    config: LearnerConfig,
    score: Scoring | None = None,
    entropy: float | None = None,
) -> Batch:
    """Return rows in the order of the samples, with advantages and weights over all of them.

    Sequences without a token of our policy are left out; a trajectory counts once, however many
    sequences it has. `entropy` is the current entropy coefficient, if it differs from the
    configuration's.
    """
    batch, scored = laid_out(samples, config)
    if score is not None:
        batch, scored = score(batch, scored)
    worth = _valued(scored, config)
    given = config.rules.exploration(scored, config.entropy if entropy is None else entropy)
    bonuses = given if isinstance(given, Bonuses) else Bonuses(given, np.zeros(len(samples)))
    return _with_worth(batch, worth, bonuses)


def laid_out(samples: Sequence[Sample], config: LearnerConfig) -> tuple[Batch, Rewards]:
    """Return rows with advantages 0, and the rewards as scored."""
    scored = rewards_of(samples, config.rules.advantage.everything_needed)
    weights_N = token_weights(config.aggregate, scored.lengths_N, config.aggregate_norm)
    rows = [
        row
        for number, sample in enumerate(samples)
        for row in _rows(number, sample, float(weights_N[number]), config.rules.teacher)
    ]
    versions_N = np.array([sample.min_version for sample in samples], dtype=np.int64)
    batch = Batch(
        tuple(rows),
        scored.totals_N,
        np.zeros(len(samples)),
        scored.lengths_N,
        versions_N,
        tuple(split_continued_id(sample.scored.trajectory.rollout_id)[0] for sample in samples),
    )
    return batch, scored


def _valued(scored: Rewards, config: LearnerConfig) -> Advantages:
    """Apply shaping and the advantage rule to rewards."""
    shaped = scored
    for shape in config.rules.shaping:
        shaped = replace(shaped, totals_N=shape(shaped))
    given = config.rules.advantage(shaped)
    return given if isinstance(given, Advantages) else Advantages(given)


def _with_worth(batch: Batch, worth: Advantages, bonuses: Bonuses) -> Batch:
    """Set advantages and bonuses in the batch; sequences of a trajectory must be adjacent."""
    taken = np.zeros(len(batch.lengths_N), dtype=np.int64)
    rows = []
    for row in batch.rows:
        number, sampled = row.trajectory, int(row.mask.sum())
        advantages = np.zeros(len(row.mask), dtype=np.float64)
        if worth.tokens is None:
            advantages[row.mask] = worth.values_N[number]
        else:
            first = taken[number]
            advantages[row.mask] = worth.tokens[number][first : first + sampled]
        taken[number] += sampled
        kept = worth.keep_N is None or bool(worth.keep_N[number])
        rows.append(
            replace(
                row,
                advantages=advantages,
                weight=row.weight if kept else 0.0,
                entropy=float(bonuses.entropy_N[number]),
                uniform=bonuses.uniform_N[number] * first_of_turns(row.mask, bonuses.first),
            )
        )
    return replace(batch, rows=tuple(rows), advantages_N=worth.values_N)


def aged(batch: Batch, v_now: int, bound: int) -> Batch:
    """Scale down the advantages of trajectories older than the bound; no weight changes."""
    ages = [v_now - int(version) if version >= 0 else 0 for version in batch.min_versions_N]
    factors = [stale_weight(age, bound) for age in ages]
    rows = [replace(row, advantages=row.advantages * factors[row.trajectory]) for row in batch.rows]
    advantages_N = batch.advantages_N * np.array(factors, dtype=np.float64)
    return replace(batch, rows=tuple(rows), advantages_N=advantages_N)


def require_known(batch: Batch, vocabulary: int) -> None:
    """Raise IndexError for a token that the model has no embedding for.

    On a GPU such a token raises later, and every later call fails too.
    """
    for b, row in enumerate(batch.rows):
        if not 0 <= row.token_ids.min() <= row.token_ids.max() < vocabulary:
            wrong = next(each for each in row.token_ids.tolist() if not 0 <= each < vocabulary)
            msg = f"row {b} has token {wrong}, and the model has tokens 0 to {vocabulary - 1}"
            raise IndexError(msg)


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
