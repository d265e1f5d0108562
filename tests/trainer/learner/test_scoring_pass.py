"""Inputs of rules before the gradient match plain arithmetic."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import Refused
from rollcall.schemas.packed import ids_of, logprobs_of, mask_of
from rollcall.trainer.batch.weighing import turns_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.scoring_pass import gradient_norms
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.advantages import Baseline, opob
from rollcall.trainer.rules.rewards import rewards_of
from rollcall.trainer.rules.samples import Sample
from tests.support.changed_config import changed
from tests.support.scored_trajectories import sample, scored, sequence, some_samples

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20)


def of(model_directory: str, **changes: Any) -> Learner:
    return Learner(model_directory, LearnerConfig.of({"lr": 1e-2, "steps": 20, **changes}))


def plain_lp(learner: Learner, one: Sample) -> torch.Tensor:
    """Of the sampled tokens of a trajectory of one sequence."""
    (each,) = one.scored.trajectory.sequences or ()
    ids = torch.tensor(ids_of(each.token_ids).tolist())
    log_p = learner.model(ids[None]).logits[0].log_softmax(-1)
    where = torch.tensor(mask_of(each.loss_mask).astype(bool))
    return torch.cat([log_p.new_zeros(1), log_p[:-1].gather(1, ids[1:, None])[:, 0]])[where]


@pytest.mark.parametrize("packing", ["rows", "shared"])
def test_gradient_norms_are_those_of_each_trajectory_alone(
    model_directory: str, packing: str
) -> None:
    learner, samples = of(model_directory, packing=packing), some_samples(0, 5)
    batch = learner.prepare(samples)
    learner.model.zero_grad()

    found = gradient_norms(batch, learner._share.pieces, learner.model, 1.0)

    for one, norm in zip(samples, found, strict=True):
        plain_lp(learner, one).sum().backward()
        exact = sum(float(p.grad.double().square().sum()) for p in learner.model.parameters())
        assert norm == pytest.approx(exact, rel=1e-4)
        learner.model.zero_grad()


def test_a_trajectory_of_several_sequences_has_the_norm_of_their_sum(model_directory: str) -> None:
    learner = of(model_directory)
    turn = sequence([1, 2, 3], [0, 1, 1])
    alone, twice = (sample(scored("a", sequences=(turn,) * n)) for n in (1, 2))

    other = sample(scored("b"), 1)
    batches = [learner.prepare([each, other]) for each in (alone, twice)]
    norms = [gradient_norms(each, learner._share.pieces, learner.model, 1.0) for each in batches]

    assert norms[1][0] == pytest.approx(4 * norms[0][0])


def test_opob_uses_the_best_baseline_without_the_steps_gradient(
    model_directory: str,
) -> None:
    samples = [replace(each, compared_in=f"g{n % 3}") for n, each in enumerate(some_samples(0))]
    samples = [replace(each, reward=float(n % 2)) for n, each in enumerate(samples)]
    learner = of(model_directory, advantage="opob", exploration="even")

    batch = learner.prepare(samples)

    with torch.no_grad():
        lp = [plain_lp(learner, one) for one in samples]
    mu = [logprobs_of((s.scored.trajectory.sequences or ())[0].behaviour_logprobs) for s in samples]
    logs = np.array([float(a.sum() - b.sum()) for a, b in zip(lp, mu, strict=True)])
    norms = gradient_norms(batch, learner._share.pieces, learner.model, 1.0)
    view = replace(rewards_of(samples), log_weights_N=logs, gradient_norms_N=norms)
    np.testing.assert_allclose(batch.advantages_N, opob(view, Baseline()), atol=1e-4)
    assert all(p.grad is None for p in learner.model.parameters())
    assert np.isfinite(learner.step(samples)["grad_norm"])


def test_divergence_from_the_reference_costs_the_tokens_before_it(model_directory: str) -> None:
    rule = {"name": "reinforce_pp", "beta": 0.5}
    learner, plain = of(model_directory, advantage=rule), of(model_directory)
    samples = some_samples(0)
    learner.step(samples)
    batch = learner.prepare(samples)

    returns = []
    for one, each in zip(samples, batch.rows, strict=True):
        with torch.no_grad():
            ref = plain_lp(plain, one).double().numpy()
        kl = each.behaviour_logprobs[each.mask].astype(np.float64) - ref
        returns.append(one.reward - 0.5 * np.cumsum(kl[::-1])[::-1])
    every = np.concatenate(returns)
    exact = (every - every.mean()) / np.sqrt(every.var(ddof=1) + 1e-8)
    found = np.concatenate([row.advantages[row.mask] for row in batch.rows])
    np.testing.assert_allclose(found, exact, atol=1e-4)


def test_a_zero_penalty_loads_no_reference(model_directory: str) -> None:
    assert of(model_directory, advantage="reinforce_pp")._auxiliary.reference is None
    with pytest.raises(Refused, match="two references, '' and 'elsewhere'; name one"):
        LearnerConfig.of({
            "kl": "k2", "advantage": {"name": "reinforce_pp", "beta": 0.1, "directory": "elsewhere"}
        })  # fmt: skip


@pytest.mark.parametrize("packing", ["rows", "shared"])
def test_a_filtered_turn_changes_no_other_turns_gradient(
    model_directory: str, packing: str
) -> None:
    """A filter removes costs, but changes no denominator."""
    rule = {"name": "high_entropy", "quantile": 0.4}
    samples = [*some_samples(0), sample(scored("short", 1.0), 99)]
    learner = of(model_directory, filters=["zero_variance", rule], packing=packing)
    whole = of(model_directory, filters=["zero_variance"], packing=packing)

    left, all_ = learner.prepare(samples), whole.prepare(samples)

    turns = turns_of(replace(all_, rows=tuple(
        replace(row, seen={"entropy": found.seen["entropy"]})
        for row, found in zip(all_.rows, seen_rows(learner, samples), strict=True)
    )))  # fmt: skip
    bound = np.quantile([turn.entropy for turn in turns], 0.4)
    kept = [turn for turn in turns if turn.entropy >= bound]
    assert left.metrics == {"turns_kept": pytest.approx(len(kept) / len(turns))}
    assert sum(int(row.mask.sum()) for row in left.rows) == sum(t.end - t.first for t in kept)
    assert {row.weight for row in left.rows} == {row.weight for row in all_.rows}
    assert np.isfinite(learner.step(samples)["grad_norm"])


def seen_rows(learner: Learner, samples: list[Sample]) -> Any:
    """All rows of a batch with what was looked at, before any turn is left out."""
    config = learner.config
    learner.config = changed(config, filters=("none",))
    rows = learner.prepare(samples).rows
    learner.config = config
    return rows


def test_turn_filters_are_separated_from_group_filters() -> None:
    config = LearnerConfig.of({"filters": ["high_entropy"]})

    assert [each.rule.name for each in config.rules.turn_filters] == ["high_entropy"]
    assert "entropy" in config.rules.needed_scores
    assert "entropy" not in LearnerConfig().rules.needed_scores


@pytest.mark.parametrize("first", [0, 1, 2])
def test_rows_and_shared_packing_give_the_same_uniform_kl_gradient(
    model_directory: str, first: int
) -> None:
    rule = {"name": "uniform_kl", "tokens": [2, 3, 5], "weight": 1.0, "first": first}
    samples = [replace(each, reward=0.0) for each in some_samples(0)]
    found = []
    for packing in ("rows", "shared"):
        learner = of(model_directory, exploration=rule, packing=packing, entropy=0.0)
        metrics = learner.step(samples)
        found.append({name: p.grad.clone() for name, p in learner.model.named_parameters()})
        with torch.no_grad():
            costs = torch.cat([learner_kl(model_directory, one, first) for one in samples])
        assert metrics["loss"] == pytest.approx(float(costs.mean()), rel=1e-4)

    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-4, atol=1e-6)
    assert any(grad.any() for grad in found[0].values())


def learner_kl(model_directory: str, one: Sample, first: int) -> torch.Tensor:
    """Of each sampled token what it pays, 0 where it is not among the first of its turn."""
    (each,) = one.scored.trajectory.sequences or ()
    ids = torch.tensor(ids_of(each.token_ids).tolist())
    mask = mask_of(each.loss_mask).astype(bool)
    turn = [t - max(np.flatnonzero(~mask[:t])) for t in np.flatnonzero(mask)]
    pays = torch.tensor([not first or place <= first for place in turn])
    log_p = of(model_directory).model(ids[None]).logits[0].log_softmax(-1)
    return (-log_p[:, [2, 3, 5]].mean(-1) - np.log(3))[:-1][mask[1:]] * pays


def test_exploration_tokens_outside_the_vocabulary_are_refused(model_directory: str) -> None:
    with pytest.raises(Refused, match="tokens has 99, and the policy has 12 tokens"):
        of(model_directory, exploration={"name": "uniform_kl", "tokens": [1, 99]})


def test_the_entropy_weight_resumes_from_a_checkpoint(model_directory: str) -> None:
    rule = {"name": "entropy_target", "target": 5.0, "change": 0.1}
    whole, first = (of(model_directory, exploration=rule, entropy=0.01) for _ in range(2))
    for number in range(2):
        whole.step(some_samples(number))
        first.step(some_samples(number))
    second = of(model_directory, exploration=rule, entropy=0.01)
    second.load(first.state())

    assert second.prepare(some_samples(2)).rows[0].entropy == pytest.approx(0.21)
    assert whole.step(some_samples(2)) == second.step(some_samples(2))
    assert whole.state() == second.state()
    second.load(of(model_directory).state())
    assert {row.entropy for row in second.prepare(some_samples(2)).rows} == {0.01}


def test_a_success_pool_without_a_correction_is_refused() -> None:
    with pytest.raises(Refused, match="success_pool is 4, and nothing corrects"):
        LearnerConfig.of({"success_pool": 4})
    corrected = {"old_logprobs": "recompute", "correction": "tis"}
    assert LearnerConfig.of({"success_pool": 4, **corrected}).replay.pool == 4
    assert LearnerConfig.of({"success_pool": 4, "loss": "m2po"}).replay.pool == 4
