"""Padding, masks and splits do not change any number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.trainer.batch.pieces import micro_batches, padded
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.batch.weighing import split
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.rewards import group_numbers
from tests.support.scored_trajectories import make_batch, sample, scored, sequence


def batch_of(lengths: list[int]) -> Batch:
    """One sequence each: a prompt token and `length` sampled ones."""
    samples = [
        sample(scored(f"r{i}", i % 2, sequences=(sequence(range(n + 1), [0] + [1] * n),)), i)
        for i, n in enumerate(lengths)
    ]
    return make_batch(samples, LearnerConfig())


def test_rows_are_padded_on_the_right_and_masked() -> None:
    micro = padded(batch_of([1, 3]), [0, 1])

    assert micro.token_ids_BT.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert micro.mask_BT.int().tolist() == [[0, 1, 0, 0], [0, 1, 1, 1]]
    assert micro.attention_mask_BT.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert micro.position_ids_BT.tolist() == [[0, 1, 2, 3]] * 2
    assert micro.behaviour_logprobs_BT.tolist() == [[0, -1, 0, 0], [0, -1, -1, -1]]


def test_a_trajectory_of_several_sequences_counts_once() -> None:
    several = tuple(sequence([1, 2, 3], [0, 1, 1]) for _ in range(3))
    samples = [sample(scored("a", 1.0, sequences=several), 0), sample(scored("b", 0.0), 1)]

    batch = make_batch(samples, LearnerConfig(aggregate="seq_mean_token_mean"))

    assert len(batch.rows) == 4
    assert batch.lengths_N.tolist() == [6, 1]
    assert np.round(batch.advantages_N, 4).tolist() == [0.7070, -0.7070]
    assert [row.weight for row in batch.rows] == pytest.approx([1 / 12] * 3 + [1 / 2])


def test_a_sequence_of_another_policy_is_left_out() -> None:
    theirs = sequence([1, 2], [0, 1], policies=[255, 1])
    both = (theirs, sequence([1, 2], [0, 1]))
    batch = make_batch(
        [sample(scored("a", sequences=both, policies=("policy", "other")))],
        LearnerConfig(),
    )

    assert len(batch.rows) == 1
    assert batch.lengths_N.tolist() == [1]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 40))
def test_micro_batches_hold_every_row_once_within_the_budget(
    lengths: list[int], budget: int
) -> None:
    batch = batch_of(lengths)
    micros = list(micro_batches(batch, budget))

    assert sorted(row for micro in micros for row in micro.rows) == list(range(len(lengths)))
    for micro in micros:
        assert list(micro.rows) == sorted(micro.rows)
        assert len(micro.rows) == 1 or micro.token_ids_BT.numel() <= budget


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_token_weights_sum_to_one(lengths: list[int]) -> None:
    batch = batch_of(lengths)

    assert sum(row.weight * row.mask.sum() for row in batch.rows) == pytest.approx(1)


def test_groups_are_numbered_as_they_appear() -> None:
    assert group_numbers(["b", "a", "b"]).tolist() == [0, 1, 0]


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=9), st.integers(0, 9), st.integers(1, 3),
    st.sampled_from(["token_mean", "seq_mean_token_mean"]),
)  # fmt: skip
def test_minibatches_hold_every_trajectory_once_per_epoch_with_own_denominators(
    lengths: list[int], size: int, epochs: int, aggregate: str
) -> None:
    batch = batch_of(lengths)
    config = LearnerConfig(minibatch=size, epochs=epochs, aggregate=aggregate, seed=7)
    updates = split(batch, config, 3)

    whole = size == 0 or size >= len(lengths)
    assert len(updates) == epochs * (1 if whole else -(-len(lengths) // size))
    seen = [len(row.token_ids) for update in updates for row in update.rows]
    assert sorted(seen) == sorted([n + 1 for n in lengths] * epochs)
    if aggregate == "token_mean" and not whole:
        for update in updates:
            assert sum(r.weight * r.mask.sum() for r in update.rows) == pytest.approx(1)
    again = split(batch, config, 3)
    assert [u.lengths_N.tolist() for u in again] == [u.lengths_N.tolist() for u in updates]
