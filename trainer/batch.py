"""Samples to padded tensors, and a batch to micro-batches that add up to the same gradient.

Shapes: N trajectories, B sequences (rows) of a micro-batch, T tokens of its longest one. Rows stay
in log order. Everything that a mean divides by is taken over the whole batch before it is split:
each row carries its final weight, so micro-batches are summed, never averaged. Padding is on the
right, where no real token of a causal model can see it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.ids import parted_id
from schemas.packed import ids_of, logprobs_of
from trainer.aggregates import token_weights
from trainer.arithmetic import FLOAT32
from trainer.config import LearnerConfig
from trainer.distillation.teacher_scores import teacher_logprobs
from trainer.foreign import SHARED
from trainer.packing import ModelInput, Worth, filled, model_input, pack_row, packs_of, pieces_of
from trainer.rewards import Advantages, Bonuses, Floats, Ints, Rewards, rewards_of
from trainer.samples import Sample, mine
from trainer.staleness import stale_weight
from trainer.uniform import first_of_turns


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence of one trajectory, masked to our policy; arrays are [T]."""

    trajectory: int
    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantages: Floats
    """0 where the mask is."""
    reward: float
    weight: float
    """What each sampled token's loss is multiplied by; see `aggregates.token_weights`."""
    entropy: float
    """What each sampled token's entropy is worth."""
    uniform: Floats
    """What each token pays for going away from the uniform distribution; 0 where the mask is."""
    seen: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """What a look at the tokens before their gradient has found, where a rule needs it: `prox`,
    `ref`, `ewma`, `snapshot`, `entropy`."""
    heard: int = 0
    """1 where it is text of another policy: nobody has sampled these tokens, so μ is what the
    trainer says of them at the step's start."""
    teacher: NDArray[np.float32] | None = None
    """A teacher's log-probabilities, nan where it gave none, where a rule needs them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole step's rows, with what is known per trajectory."""

    rows: tuple[BatchRow, ...]
    rewards_N: Floats
    advantages_N: Floats
    lengths_N: Ints
    min_versions_N: Ints
    """-1 of what another run has lent."""
    names: tuple[str, ...] = ()
    """Of each trajectory the id that it was first asked for under."""
    told: Mapping[str, float] = field(default_factory=dict)
    """What has been done to it, for the metrics of the step."""

    @property
    def tokens(self) -> int:
        return int(self.lengths_N.sum())


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded to one length. Row b is `rows[b]` of the batch."""

    rows: tuple[int, ...]
    token_ids_BT: Tensor
    mask_BT: Tensor
    behaviour_logprobs_BT: Tensor
    versions_BT: Tensor
    attention_mask_BT: Tensor
    position_ids_BT: Tensor
    advantage_BT: Tensor
    reward_B: Tensor
    weight_B: Tensor
    entropy_B1: Tensor
    """float32, as what it is multiplied with."""
    uniform_BT: Tensor
    seen: Mapping[str, Tensor]
    """[B,T] each, of what all of its rows hold."""
    teacher_BT: Tensor | None = None
    shared: ModelInput | None = None
    """What the model is given in place of these rows, where they share what they begin with."""
    precision: str = FLOAT32
    """What its products are made in."""
    exact: bool = False
    """Whether each token is computed in the shape in which the engine computed it."""


Look = Callable[[Batch, Rewards], tuple[Batch, Rewards]]
"""What is looked at before anything is computed of it: the same two, with what was found."""


def make_batch(
    samples: Sequence[Sample],
    config: LearnerConfig,
    look: Look | None = None,
    entropy: float | None = None,
) -> Batch:
    """Rows in the order of the samples; advantages and weights over all of them at once.

    Sequences without a token of our policy are left out; a trajectory counts once, however many
    sequences it has. `entropy` is what entropies are worth by now, where that is not what the
    configuration says.
    """
    batch, scored = laid_out(samples, config)
    if look is not None:
        batch, scored = look(batch, scored)
    worth = _valued(scored, config)
    given = config.rules.exploration(scored, config.entropy if entropy is None else entropy)
    bonuses = given if isinstance(given, Bonuses) else Bonuses(given, np.zeros(len(samples)))
    return _with_worth(batch, worth, bonuses)


def laid_out(samples: Sequence[Sample], config: LearnerConfig) -> tuple[Batch, Rewards]:
    """Rows that are worth nothing yet, and rewards as they were scored."""
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
        tuple(parted_id(sample.scored.trajectory.rollout_id)[0] for sample in samples),
    )
    return batch, scored


def _valued(scored: Rewards, config: LearnerConfig) -> Advantages:
    """What shaping and the advantage rule make of rewards."""
    shaped = scored
    for shape in config.rules.shaping:
        shaped = replace(shaped, totals_N=shape(shaped))
    given = config.rules.advantage(shaped)
    return given if isinstance(given, Advantages) else Advantages(given)


def _with_worth(batch: Batch, worth: Advantages, bonuses: Bonuses) -> Batch:
    """The batch with what its tokens are worth; sequences of a trajectory follow one another."""
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
    """The batch with advantages of what is older than the bound made smaller; no weight changes."""
    ages = [v_now - int(version) if version >= 0 else 0 for version in batch.min_versions_N]
    factors = [stale_weight(age, bound) for age in ages]
    rows = [replace(row, advantages=row.advantages * factors[row.trajectory]) for row in batch.rows]
    advantages_N = batch.advantages_N * np.array(factors, dtype=np.float64)
    return replace(batch, rows=tuple(rows), advantages_N=advantages_N)


def require_known(batch: Batch, vocabulary: int) -> None:
    """Raise IndexError for a token that the model has no embedding for.

    A GPU that is asked for one raises later, and for everything from then on.
    """
    for b, row in enumerate(batch.rows):
        if not 0 <= row.token_ids.min() <= row.token_ids.max() < vocabulary:
            wrong = next(each for each in row.token_ids.tolist() if not 0 <= each < vocabulary)
            msg = f"row {b} has token {wrong}, and the model has tokens 0 to {vocabulary - 1}"
            raise IndexError(msg)


def micro_batches(batch: Batch, budget_tokens: int, device: str = "cpu") -> Iterator[MicroBatch]:
    """Rows of like length together, B·T within the budget (one row may exceed it alone).

    The split and its order depend on the rows alone: the same batch gives the same sums.
    """
    order = sorted(range(len(batch.rows)), key=lambda b: len(batch.rows[b].token_ids))
    taken: list[int] = []
    for b in order:
        if taken and (len(taken) + 1) * len(batch.rows[b].token_ids) > budget_tokens:
            yield padded(batch, taken, device)
            taken = []
        taken.append(b)
    if taken:
        yield padded(batch, taken, device)


def shared_micro_batches(
    batch: Batch, worth: Worth, budget_tokens: int, device: str = "cpu", *, fill: bool = False
) -> Iterator[MicroBatch]:
    """The same rows, but the model is given once what several begin with.

    With `fill`, what shares nothing lies end to end too; the budget counts what the model is given.
    Raises ValueError for a row whose first token was sampled.
    """
    rows = [pack_row(b, row.token_ids, row.mask) for b, row in enumerate(batch.rows)]
    made = packs_of(rows, worth)
    for packs in pieces_of(filled(made, worth, budget_tokens) if fill else made, budget_tokens):
        taken = [row.row for pack in packs for row in pack.rows]
        yield replace(padded(batch, taken, device), shared=model_input(packs, device))


def padded(batch: Batch, rows: Sequence[int], device: str = "cpu") -> MicroBatch:
    """The given rows as tensors, in log order, padded on the right with token 0 and mask 0."""
    rows = sorted(rows)
    chosen = [batch.rows[b] for b in rows]
    width = max(len(row.token_ids) for row in chosen)

    def stacked(arrays: Sequence[NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
        out = np.zeros((len(arrays), width), dtype=arrays[0].dtype)
        for b, array in enumerate(arrays):
            out[b, : len(array)] = array
        return torch.from_numpy(out).to(device, dtype)

    known = [name for name in chosen[0].seen if all(name in row.seen for row in chosen)]
    teacher = [row.teacher for row in chosen if row.teacher is not None]
    ones = [np.ones(len(row.token_ids), dtype=np.int64) for row in chosen]
    return MicroBatch(
        tuple(rows),
        stacked([row.token_ids for row in chosen], torch.int64),
        stacked([row.mask for row in chosen], torch.bool),
        stacked([row.behaviour_logprobs for row in chosen], torch.float32),
        stacked([row.versions for row in chosen], torch.int64),
        stacked(ones, torch.int64),
        torch.arange(width, device=device).expand(len(rows), -1),
        stacked([row.advantages for row in chosen], torch.float64),
        torch.tensor([row.reward for row in chosen], dtype=torch.float64, device=device),
        torch.tensor([row.weight for row in chosen], dtype=torch.float64, device=device),
        torch.tensor([[row.entropy] for row in chosen], dtype=torch.float32, device=device),
        stacked([row.uniform for row in chosen], torch.float32),
        {name: stacked([row.seen[name] for row in chosen], torch.float32) for name in known},
        stacked(teacher, torch.float32) if len(teacher) == len(chosen) else None,
    )


def _rows(number: int, sample: Sample, weight: float, teacher: str) -> Iterator[BatchRow]:
    """The trajectory's sequences in which our policy has sampled."""
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
            np.full(len(mask), -1, np.int32) if sample.lent else ids_of(sequence.versions),
            np.zeros(len(mask), dtype=np.float64),
            sample.reward,
            weight,
            0.0,
            np.zeros(len(mask), dtype=np.float64),
            heard=int(sample.lent == SHARED),
            teacher=taught[at] if taught else None,
        )
