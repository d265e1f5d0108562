"""Sources of old log-probabilities; exact ones are those of the sampling weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import Refused
from rollcall.schemas.packed import ids_of
from rollcall.schemas.rules import NoOptions
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.auxiliary_models import MovingAverage
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.losses import Decay
from rollcall.trainer.rules.old_logprobs import (
    as_reported,
    ewma,
    interrupt,
    loglinear,
    recompute,
    snapshot,
)
from rollcall.trainer.rules.samples import Sample
from tests.support.changed_config import changed
from tests.support.golden import golden
from tests.support.scored_trajectories import sample, scored, sequence, some_samples
from tests.support.token_views import piece

CONFIG = LearnerConfig(entropy=0.0, lr=1e-2, steps=20)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@golden("old_logprobs", "loglinear")
def test_the_log_linear_stand_in_matches_published_values() -> None:
    """v_b 3, v_prox 5, v_θ 6: α is 2/3; a fresh token has the engine's own."""
    versions_BT = torch.tensor([[3, 5]])
    lp_BT = row(-0.6, -0.6).requires_grad_()
    tokens = piece(lp_BT, row(-1.2, -1.2), 1.0, versions_BT=versions_BT, version=5)

    old = loglinear(tokens, NoOptions())

    assert old.old_BT.tolist() == [pytest.approx([-0.8, -1.2])]
    assert not old.old_BT.requires_grad
    assert old.exact_BT is None


@golden("old_logprobs", "none", "recompute", "snapshot", "interrupt", "ewma")
def test_each_rule_returns_its_own_logprobs_and_marks_exact_ones() -> None:
    tokens = piece(
        row(-1, -1), row(-2, -2), 1.0, versions_BT=torch.tensor([[3, 4]]), version=4,
        prox_BT=row(-3, -3), ewma_BT=row(-4, -4), snapshot_BT=row(-5, torch.nan),
        noted_BT=row(-6, -6),
    )  # fmt: skip

    assert as_reported(tokens, NoOptions()).old_BT.tolist() == [[-2, -2]]
    assert as_reported(tokens, NoOptions()).exact_BT is None
    fresh = recompute(tokens, NoOptions())
    assert fresh.old_BT.tolist() == [[-3, -3]]
    assert fresh.exact_BT is not None
    assert fresh.exact_BT.tolist() == [[False, True]]
    kept = snapshot(tokens, NoOptions())
    assert kept.old_BT.tolist() == [[-5, -2]]
    assert kept.exact_BT is not None
    assert kept.exact_BT.tolist() == [[True, False]]
    said = interrupt(tokens, NoOptions())
    assert said.old_BT.tolist() == [[-6, -3]]
    assert said.exact_BT is not None
    assert said.exact_BT.tolist() == [[True, True]]
    unsaid = interrupt(replace(tokens, noted_BT=row(torch.nan, -6)), NoOptions())
    assert unsaid.old_BT.tolist() == [[-2, -3]]
    assert unsaid.exact_BT is not None
    assert unsaid.exact_BT.tolist() == [[False, True]]
    assert ewma(tokens, Decay()).old_BT.tolist() == [[-4, -4]]


def of_two_versions(learner: Learner) -> list[Sample]:
    """Rollouts whose first turn version 0 has sampled, and whose second version 1."""
    made = []
    for number, one in enumerate(some_samples(0)):
        each = (one.scored.trajectory.sequences or ())[0]
        mask = list(each.loss_mask)
        turn = np.cumsum([not m for m in mask]) - 2
        versions = [int(t) if m else -1 for t, m in zip(turn, mask, strict=True)]
        made_of = sequence(ids_of(each.token_ids), mask, [-2.5 * m for m in mask], versions)
        made.append(sample(scored(f"r{number}", float(number % 3), sequences=(made_of,)), number))
    return made


def test_a_token_is_scored_by_the_weights_that_sampled_it(model_directory: str) -> None:
    """Under a recipe that corrects: exact where they are kept, the engine's where they are gone."""
    kept: dict[int, dict[str, RawTensor]] = {}
    config = changed(CONFIG, old_logprobs="snapshot", correction="tis", micro_batch_tokens=40)
    learner = Learner(model_directory, config, past=kept.get)
    plain = Learner(model_directory, CONFIG)
    for version in (0, 1):
        learner.version = version
        kept[version] = dict(learner.tensors())
        learner.step(some_samples(version), version=version + 1)
    samples = of_two_versions(learner)
    batch = learner.prepare(samples)

    for version in (0, 1):
        plain.load(replace(plain.state(), weights=kept[version]))
        alone = Learner.prepare(plain, samples)
        found = recomputed(plain, alone)
        for seen, exact in zip(batch.rows, found, strict=True):
            there = seen.mask & (seen.versions == version)
            np.testing.assert_allclose(seen.seen["snapshot"][there], exact[there], atol=1e-6)
    assert learner.step(samples)["old_exact"] == 1
    del kept[0]
    assert 0 < learner.step(samples)["old_exact"] < 1
    assert np.isfinite(learner.step(samples)["grad_norm"])


INTERRUPT = changed(
    CONFIG, old_logprobs="interrupt", over_provision=2.0, correction="tis", max_staleness=1
)


def test_noted_logprobs_of_interrupted_rollouts_come_from_the_weights_at_interruption(
    model_directory: str,
) -> None:
    """Of the part that was finished; what its continuation samples later is said at its step."""
    kept: dict[int, dict[str, RawTensor]] = {}
    learner = Learner(model_directory, INTERRUPT)
    exact = Learner(model_directory, changed(CONFIG, old_logprobs="snapshot"), past=kept.get)
    kept[0] = dict(learner.tensors())
    samples = of_two_versions(learner)
    learner.cache_logprobs([cut_off(each) for each in samples])
    learner.step(some_samples(3))
    exact.load(learner.state())
    kept[1] = dict(learner.tensors())

    found, snapshots = learner.prepare(samples), exact.prepare(samples)

    for said, kept_ in zip(found.rows, snapshots.rows, strict=True):
        old = said.mask & (said.versions == 0)
        np.testing.assert_allclose(said.seen["noted"][old], kept_.seen["snapshot"][old], atol=1e-6)
        assert np.isnan(said.seen["noted"][said.mask & (said.versions == 1)]).all()
    second = Learner(model_directory, INTERRUPT)
    second.load(learner.state())
    assert learner.step(samples)["old_exact"] == 1
    second.step(samples)
    assert learner.state() == second.state()


def test_a_continuation_that_differs_from_its_note_is_not_exact(model_directory: str) -> None:
    learner = Learner(model_directory, INTERRUPT)
    samples = of_two_versions(learner)
    learner.cache_logprobs([cut_off(each) for each in samples])
    learner.step(some_samples(3))
    other = [replace(each, scored=replace(each.scored, trajectory=replace(
        each.scored.trajectory, rollout_id=f"r{(number + 1) % len(samples)}"
    ))) for number, each in enumerate(samples)]  # fmt: skip

    assert learner.step(other)["old_exact"] < 1


def test_notes_too_old_to_train_on_are_forgotten(model_directory: str) -> None:
    learner = Learner(model_directory, INTERRUPT)
    cached = learner._auxiliary.logprobs
    assert cached is not None
    learner.cache_logprobs(some_samples(0))
    assert len(cached) == 12
    for number in range(2):
        learner.step(some_samples(1))
        learner.cache_logprobs([])
        assert len(cached) == (12, 0)[number]


def test_interrupt_without_interrupted_rollouts_is_refused() -> None:
    with pytest.raises(Refused, match="scores what is cut off before a step, and nothing is"):
        changed(CONFIG, old_logprobs="interrupt")


def cut_off(one: Sample) -> Sample:
    """The same after its first turn, under the id that it had then."""
    (each,) = one.scored.trajectory.sequences or ()
    mask, versions = list(each.loss_mask), ids_of(each.versions)
    end = max(np.flatnonzero(versions == 0)) + 1
    part = sequence(
        ids_of(each.token_ids)[:end], mask[:end],
        [-2.5 * m for m in mask[:end]], [int(v) for v in versions[:end]],
    )  # fmt: skip
    trajectory = replace(one.scored.trajectory, sequences=(part,))
    return replace(one, scored=replace(one.scored, trajectory=trajectory), length=sum(mask[:end]))


def recomputed(learner: Learner, batch: Batch) -> list[np.ndarray]:
    """What the learner's weights of now say, row by row without padding."""
    told = []
    for each in batch.rows:
        ids = torch.tensor(each.token_ids.tolist())
        with torch.no_grad():
            log_p_TV = learner.model(ids[None]).logits[0].log_softmax(-1)
        lp = log_p_TV[:-1].gather(1, ids[1:, None])[:, 0].numpy()
        told.append(np.concatenate([[0.0], lp]))
    return told


def test_snapshots_without_a_run_folder_are_refused(model_directory: str) -> None:
    with pytest.raises(Refused, match=r"needs the folder of a run.*use recompute"):
        Learner(model_directory, changed(CONFIG, old_logprobs="snapshot"))


def test_the_moving_average_of_weights_matches_published_values() -> None:
    """d .9, θ̄ 0, then θ = 1 three times."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    average = MovingAverage(model, 0.9)
    torch.nn.init.ones_(model.weight)
    found = []
    for _ in range(3):
        average.update(model)
        found.append((average.total, average.model.weight.item()))

    assert np.round(found, 6).tolist() == [[1.9, 0.526316], [2.71, 0.701107], [3.439, 0.78802]]


def test_a_run_with_a_moving_average_resumes_bit_for_bit(model_directory: str) -> None:
    config = changed(CONFIG, loss="ppo_ewma", minibatch=5)
    whole, first = (Learner(model_directory, config) for _ in range(2))
    for number in range(2):
        whole.step(some_samples(number))
        first.step(some_samples(number))
    second = Learner(model_directory, config)
    second.load(first.state())

    for number in (2, 3):
        assert whole.step(some_samples(number)) == second.step(some_samples(number))
    assert whole.state() == second.state()
    assert any(name.endswith("/average") for name in whole.state().optimiser)
