"""The shipped recipes' arithmetic, written out in one function: the learner gives the same bits.

Digests would be a machine's own; this holds on every one, on as many threads as it has.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from rollcall.compose.runs.recipe import load_recipe
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.tensors import tensors_of
from tests.support.scored_trajectories import some_samples
from tests.support.tiers import cases

GROUP = 4


def in_groups(samples: Sequence[Sample]) -> list[Sample]:
    """Those next to one another belong together."""
    made = []
    for number, sample in enumerate(samples):
        trajectory = sample.scored.trajectory
        assert trajectory.request is not None
        request = replace(trajectory.request, group_id=f"g{number // GROUP}", group_size=GROUP)
        scored = replace(sample.scored, trajectory=replace(trajectory, request=request))
        made.append(replace(sample, scored=scored))
    return made


LAKE = {"advantage": "batch_normalised", "loss": "clip_higher", "groups_per_step": 8}
SYLLOGISMS = {**LAKE, "entropy": 0.2, "groups_per_step": 32, "group_size": 4}
FIRST_SHIPPED = {"lake-any-start": LAKE, "syllogisms": SYLLOGISMS}
"""How two were first shipped: runs of then are still resumed and trained again."""


@pytest.mark.parametrize("recipe", cases(["lake-any-start", "syllogisms", "repairs"]))
def test_five_steps_give_the_bits_of_a_plain_implementation(
    recipe: str, model_directory: str
) -> None:
    learned = FIRST_SHIPPED.get(recipe) or load_recipe(recipe)[0].learner.given()
    config = LearnerConfig.of({**learned, "lr": 1e-2, "seed": 3})
    learner, plain = Learner(model_directory, config), loaded(model_directory).eval()
    optimiser = torch.optim.AdamW(
        plain.parameters(),
        lr=config.optimiser.lr,
        betas=config.optimiser.betas,
        weight_decay=config.optimiser.weight_decay,
    )

    for number in range(5):
        samples = in_groups(some_samples(number))
        metrics = learner.step(samples)
        optimiser.param_groups[0]["lr"] = config.lr_at(number)
        optimiser.zero_grad()
        cost = plain_cost(plain, samples, config)
        cost.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.optimiser.max_grad_norm)
        optimiser.step()
        assert metrics["loss"] == cost.item() != 0

    assert learner.tensors() == tensors_of(plain)


def plain_cost(
    model: torch.nn.Module, samples: Sequence[Sample], config: LearnerConfig
) -> torch.Tensor:
    """Loss of a batch: batch-normalised or GRPO, clip-higher or GSPO, and the entropy bonus."""
    rewards = np.array([sample.reward for sample in samples])
    groups = [rewards] if config.advantage == "batch_normalised" else np.split(rewards, 3)
    worth = np.concatenate([
        ((g - g[0]) - float((g - g[0]).mean())) / (float((g - g[0]).std(ddof=1)) + 1e-4)
        for g in groups
    ])  # fmt: skip
    sequences = [(sample.scored.trajectory.sequences or ())[0] for sample in samples]
    width = max(len(ids_of(each.token_ids)) for each in sequences)
    ids, mask = torch.zeros(2, len(samples), width, dtype=torch.int64)
    old = torch.zeros(len(samples), width)
    for b, each in enumerate(sequences):
        length = len(ids_of(each.token_ids))
        ids[b, :length] = torch.tensor(ids_of(each.token_ids))
        mask[b, :length] = torch.tensor(list(each.loss_mask))
        old[b, :length] = torch.tensor(logprobs_of(each.behaviour_logprobs))
    real = torch.tensor([[t < len(each.loss_mask) for t in range(width)] for each in sequences])
    logits = model(
        input_ids=ids,
        attention_mask=real.long(),
        position_ids=torch.arange(width).expand(len(ids), -1),
        use_cache=False,
    ).logits
    b, t = mask.nonzero(as_tuple=True)
    log_p = logits[b, t - 1].log_softmax(-1)
    lp = torch.zeros(mask.shape).index_put((b, t), log_p.gather(1, ids[b, t][:, None])[:, 0])
    entropy = -(log_p.exp() * log_p).sum(-1)
    log_ratio = lp - old
    if config.loss == "gspo":
        mean = (log_ratio * mask.float()).sum(1, keepdim=True) / mask.float().sum(1, keepdim=True)
        log_ratio = mean.detach() + lp - lp.detach()
        low, high = 1 - 3e-4, 1 + 4e-4
    else:
        low, high = 1 - 0.2, 1 + 0.28
    ratio, gain = log_ratio.exp(), torch.tensor(worth)[:, None]
    cost = -torch.minimum(ratio * gain, ratio.clamp(low, high) * gain)
    n = mask.sum(1).numpy()
    by_token = config.aggregate == "token_mean"
    weights = np.full(len(n), 1 / n.sum()) if by_token else 1 / (n * len(n))
    cost = cost - config.entropy * torch.zeros(mask.shape).index_put((b, t), entropy)
    return (cost[b, t] * torch.tensor(weights)[b]).sum()
