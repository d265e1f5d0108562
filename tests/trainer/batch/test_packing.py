"""Shared prefixes are computed once, with the same numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rollcall.schemas.errors import BatchFailed, Refused
from rollcall.trainer.batch.packing import Worth, filled, model_input, pack_row, packs_of, pieces_of
from rollcall.trainer.batch.pieces import micro_batches, padded, shared_micro_batches
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import forward, token_scores
from rollcall.trainer.learner.sharing import sharing_of
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import Sample
from tests.support.changed_config import changed
from tests.support.families import model_of
from tests.support.scored_trajectories import (
    VOCABULARY,
    make_batch,
    sample,
    scored,
    sequence,
    some_samples,
)
from tests.support.tiers import cases, examples

ALWAYS = Worth(pairs=2**40, longest=2**40)
ROOMY = Worth(pairs=240, longest=64)
CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20, packing="shared")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def rollouts() -> list[Sample]:
    """Groups with a prompt each, of one turn and of two; doubles, and one that begins another."""
    prompts = ([1, 2, 3, 4, 5], [1, 2, 9], [7])
    answers = ([6, 7], [6, 8, 9], [3], [6, 7])
    rows = [([*p, *a], [0] * len(p) + [1] * len(a)) for p in prompts for a in answers]
    turns = [[1, 2, 9, 6, 7, 11, 4, said] for said in (5, 6)]
    rows += [(ids, [0, 0, 0, 1, 1, 0, 0, 1]) for ids in turns]
    rows.append(([1, 2, 9, 6, 7, 11, 11, 11], [0, 0, 0, 1, 1, 0, 0, 0]))
    made = []
    for number, (ids, mask) in enumerate(rows):
        record = scored(str(number), float(number % 3), sequences=(sequence(ids, mask),))
        made.append(Sample(record, 0, number, 0, number, 0, sum(mask)))
    return made


def strangers() -> list[Sample]:
    """Rollouts of many lengths that have not one first token in common."""
    made = []
    for number in range(12):
        ids = [(number + step) % VOCABULARY for step in range(number + 4)]
        record = scored(str(number), 1.0, sequences=(sequence(ids, [0, *[1] * (number + 3)]),))
        made.append(Sample(record, 0, number, 0, 1.0, 0, number + 3))
    return made


def batch_of(samples: Sequence[Sample]) -> Batch:
    return make_batch(samples, LearnerConfig())


@pytest.mark.parametrize(
    ("kind", "worth"),
    [("gpt2", ALWAYS), ("llama", ALWAYS), ("qwen2", ALWAYS), ("qwen3", ALWAYS),
     ("llama", Worth(60, 64)), ("llama", Worth(0, 64))],
)  # fmt: skip
def test_shared_rows_give_the_logprobs_of_separate_rows(kind: str, worth: Worth) -> None:
    model, batch = model_of(kind).double(), batch_of(rollouts())
    apart, together = {}, {}

    with torch.no_grad():
        for micro in micro_batches(batch, 1):
            said = forward(model, micro, 0.7)
            [row] = micro.rows
            apart[row] = said.lp_BT[0], said.entropy_BT[0]
        for micro in shared_micro_batches(batch, worth, 60):
            said = forward(model, micro, 0.7)
            for b, row in enumerate(micro.rows):
                length = len(batch.rows[row].token_ids)
                together[row] = said.lp_BT[b, :length], said.entropy_BT[b, :length]

    assert sorted(together) == sorted(apart)
    for row, (lp, entropy) in apart.items():
        torch.testing.assert_close(together[row][0], lp, rtol=5e-7, atol=1e-7)
        torch.testing.assert_close(together[row][1], entropy, rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("kind", cases(["gpt2", "llama", "qwen2", "qwen3"]))
def test_filled_packs_give_the_logprobs_of_separate_rows(kind: str) -> None:
    model, batch = model_of(kind).double(), batch_of(strangers())
    pieces = list(shared_micro_batches(batch, ROOMY, 60, fill=True))
    with torch.no_grad():
        [apart] = [forward(model, padded(batch, range(len(batch.rows))), 0.7)]
        for micro in pieces:
            together = forward(model, micro, 0.7)
            for b, row in enumerate(micro.rows):
                length = len(batch.rows[row].token_ids)
                difference = together.lp_BT[b, :length] - apart.lp_BT[row, :length]
                assert difference.abs().max() <= 1e-6

    shapes = [micro.shared.token_ids_PW.shape for micro in pieces if micro.shared]
    assert shapes == [(1, 42), (1, 60)]
    assert sum(len(micro.rows) for micro in pieces) == len(batch.rows)


def test_rows_are_packed_while_the_mask_is_worth_it() -> None:
    rows = [pack_row(b, np.full(11, b), np.arange(11) > 5) for b in range(8)]

    def widths(worth: Worth, budget: int) -> list[int]:
        return [pack.width for pack in filled(packs_of(rows, worth), worth, budget)]

    assert widths(Worth(160, 64), 16384) == [40, 40]
    assert widths(Worth(160, 64), 30) == [30, 30, 20]
    assert widths(Worth(160, 9), 16384) == [10] * 8
    assert widths(Worth(16, 64), 16384) == [10] * 8


def test_shared_prefixes_stay_shared_in_filled_packs() -> None:
    prompts = [[b] * 40 for b in range(2)]
    rows = [[*prompt, *answer, 9] for prompt in prompts for answer in ([2, 3], [2, 4], [6, 7])]
    made = [pack_row(b, np.array(ids), np.arange(43) > 39) for b, ids in enumerate(rows)]

    [pack] = filled(packs_of(made, Worth(768, 64)), Worth(768, 64), 16384)

    assert pack.width == 2 * (40 + len([2, 3]) + len([4]) + len([6, 7]))


@pytest.mark.parametrize("packing", ["shared", "packed"])
@pytest.mark.parametrize("budget", cases([20, 16384]))
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo"])
def test_a_packed_step_gives_the_gradient_of_separate_rows(
    model_directory: str, loss: str, budget: int, packing: str
) -> None:
    found = []
    for how, tokens in (("rows", 16384), (packing, budget)):
        config = changed(CONFIG, packing=how, loss=loss, micro_batch_tokens=tokens)
        learner = Learner(model_directory, changed(config, max_grad_norm=1e9))
        learner.model.double()
        metrics = learner.step(rollouts())
        gradients = {n: p.grad.clone() for n, p in learner.model.named_parameters()}
        found.append((metrics, gradients))

    (rows, plain), (shared, packed) = found
    assert shared == pytest.approx(rows, rel=1e-5, abs=1e-7)
    for name, gradient in plain.items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-5, atol=1e-8)


def test_the_same_batches_give_the_same_bits(model_directory: str) -> None:
    learners = [Learner(model_directory, CONFIG) for _ in range(2)]

    told = [[learner.step(some_samples(n)) for n in range(3)] for learner in learners]

    assert told[0] == told[1]
    assert learners[0].tensors() == learners[1].tensors()


def test_a_rule_that_looks_before_the_first_update_handles_shared_rows(
    model_directory: str,
) -> None:
    config = changed(CONFIG, loss="ppo_clip", epochs=2, minibatch=4)

    assert np.isfinite(Learner(model_directory, config).step(rollouts())["loss"])


Rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.lists(st.booleans(), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    Rows, st.sampled_from([ALWAYS, Worth(20, 64), Worth(0, 64)]), st.integers(1, 60), st.booleans()
)
def test_a_token_attends_to_its_own_row_only(
    drawn: list[tuple[list[int], list[bool]]], worth: Worth, budget: int, fill: bool
) -> None:
    rows = [(np.array(p + [int(s) for s in m]), np.array([False] * len(p) + m)) for p, m in drawn]
    rows = [(ids, mask) for ids, mask in rows if mask.any()]
    made = [pack_row(number, ids, mask) for number, (ids, mask) in enumerate(rows)]
    seen = []

    packs = packs_of(made, worth)
    for piece in pieces_of(filled(packs, worth, budget) if fill else packs, budget):
        given_ = model_input(piece)
        mask = given_.attention_mask
        width = given_.token_ids_PW.shape[1]
        at = 0
        for number in sorted(row.row for pack in piece for row in pack.rows):
            ids, sampled = rows[number]
            for t in np.flatnonzero(sampled):
                p, kept = divmod(int(given_.place_M[at]), given_.keep)
                w = width - given_.keep + kept
                if mask.ndim == 4:
                    visible = (mask[p, 0, w] == 0).nonzero()[:, 0]
                else:
                    visible = torch.arange(w + 1)
                order = given_.position_ids_PW[p, visible].argsort()
                assert given_.token_ids_PW[p, visible][order].tolist() == ids[:t].tolist()
                assert given_.position_ids_PW[p, visible][order].tolist() == list(range(t))
                at += 1
            seen.append(number)
        assert at == len(given_.place_M)

    assert sorted(seen) == list(range(len(rows)))


def test_shared_prefixes_are_stored_once_and_trailing_tokens_are_dropped() -> None:
    prompt, answers = [1] * 50, ([2, 3, 4], [2, 3, 5], [6, 7, 8])
    rows = [np.array([*prompt, *answer, 9, 9]) for answer in answers]
    mask = np.array([False] * 50 + [True] * 3 + [False] * 2)

    [pack] = packs_of([pack_row(b, ids, mask) for b, ids in enumerate(rows)], Worth(768, 64))

    assert pack.width == 50 + len([2, 3]) + len([6, 7])
    assert model_input([pack]).keep == 1 + len([2, 3]) + len([6, 7])


def test_rows_share_if_that_saves_more_than_the_wider_mask_costs() -> None:
    rows = [pack_row(b, np.array([1, 2, *[b + 3] * 40]), np.arange(42) > 5) for b in range(3)]

    assert len(packs_of(rows, Worth(768, 64))) == 3
    assert len(packs_of(rows, Worth(7680, 64))) == 1
    assert len(packs_of(rows, Worth(7680, 40))) == 3


def test_scores_have_the_gradient_of_log_softmax_and_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(70, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    place = torch.randint(0, 70, (90,), generator=generator)
    token = torch.randint(0, 5, (90,), generator=generator)
    by = torch.randn(2, 90, generator=generator, dtype=torch.float64)

    lp, entropy = token_scores(logits, place, token, 0.7)
    (mine,) = torch.autograd.grad((lp * by[0] + entropy * by[1]).sum(), logits)

    log_p = (logits / 0.7).log_softmax(-1)
    plain = log_p[place, token], -(log_p.exp() * log_p).sum(-1)[place]
    torch.testing.assert_close((lp, entropy), plain)
    (wanted,) = torch.autograd.grad((plain[0] * by[0] + plain[1] * by[1]).sum(), logits)
    torch.testing.assert_close(mine, wanted)


def test_a_token_of_zero_probability_adds_nothing() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)

    lp, entropy = token_scores(logits, torch.tensor([0]), torch.tensor([1]), 1.0)
    (lp.sum() + entropy.sum()).backward()

    assert [lp.item(), entropy.item()] == pytest.approx([np.log(0.5), np.log(2)])
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [("gpt2", True), ("llama", True), ("qwen2", True), ("qwen3", True), ("gemma2", True),
     ("bloom", False), ("mamba", False)],
)  # fmt: skip
def test_a_trial_run_decides_whether_a_model_can_share_rows(kind: str, shares: bool) -> None:
    assert isinstance(sharing_of(model_of(kind)), Worth) == shares


def test_rows_longer_than_a_sliding_window_are_not_shared() -> None:
    found = sharing_of(model_of("mistral", sliding_window=8))

    assert isinstance(found, Worth)
    assert found.longest == 8


def test_an_unsupported_model_is_padded_and_reported_once(tmp_path: Path) -> None:
    model_of("bloom").save_pretrained(tmp_path)
    with capture_logs() as said:
        learner = Learner(str(tmp_path), CONFIG)
        told = [learner.step(some_samples(n)) for n in range(2)]

    plain = Learner(str(tmp_path), changed(CONFIG, packing="rows"))
    assert told == [plain.step(some_samples(n)) for n in range(2)]
    assert learner.tensors() == plain.tensors()
    assert [(line["event"], line["model"]) for line in said] == [
        ("rows_padded", "BloomForCausalLM")
    ]


def test_a_batch_that_cannot_be_computed_counts_as_no_step(model_directory: str) -> None:
    learner = Learner(model_directory, CONFIG)
    foreign = sample(scored("x", sequences=(sequence([1, 10**6, 2], [0, 0, 1]),)), 99)

    with pytest.raises(BatchFailed, match="IndexError"):
        learner.step([*some_samples(3), foreign])

    assert learner.steps_done == 0
    with pytest.raises(ValueError, match="row 5 begins with a sampled token"):
        pack_row(5, np.array([1, 2]), np.array([True, True]))


def test_an_unknown_packing_is_refused_and_default_packing_changes_no_digest() -> None:
    with pytest.raises(Refused, match="did you mean 'shared'"):
        LearnerConfig(packing="share")
    assert LearnerConfig(packing="packed").digest() != CONFIG.digest()

    plain = changed(CONFIG, packing="rows")
    assert plain.digest() == LearnerConfig(entropy=0.01, lr=1e-2, steps=20).digest()
    assert CONFIG.digest() != plain.digest()


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=12),
    longest=st.integers(2, 40),
    budget=st.integers(40, 200),
)
def test_a_row_with_its_own_mask_stays_alone_in_filled_packs(
    lengths: list[int], longest: int, budget: int
) -> None:
    worth = Worth(pairs=4 * 4096, longest=longest)
    dice = np.random.default_rng(0)
    rows = []
    for number, length in enumerate(lengths):
        mask = np.arange(length) >= length // 2 + (length < 4)
        mask[-1] = True
        rows.append(pack_row(number, dice.integers(2, 60, length).astype(np.int32), mask))

    made = filled(packs_of(rows, worth), worth, budget)

    assert sorted(row.row for pack in made for row in pack.rows) == list(range(len(rows)))
    for pack in made:
        assert len(pack.rows) == 1 or pack.longest() <= longest
