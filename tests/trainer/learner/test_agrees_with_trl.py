"""Equal tensors have the cost and gradients of TRL's GRPOTrainer."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.batch.pieces import micro_batches
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.learner.gradient import Gradient
from rollcall.trainer.learner.scoring_pass import with_logprobs
from rollcall.trainer.rules.samples import Sample
from tests.support.scored_trajectories import VOCABULARY, make_batch, sample, scored, sequence

WIDEST = 11
"""Tokens of the longest answer."""
CONFIG = LearnerConfig(entropy=0.0)
THEIRS = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "beta": 0.0,
    "max_completion_length": WIDEST,
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
}
"""What TRL is set to where a case says nothing else."""


@dataclass(frozen=True)
class Case:
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    same_value: bool = True
    """False: the gradient alone is the same, as TRL writes A·r where r is 1."""
    on_policy: bool = False


GSPO = {"importance_sampling_level": "sequence", "loss_type": "grpo"}
CASES = {
    "token_mean": Case({"loss": "ppo_clip"}, {}),
    "seq_mean_token_mean": Case(
        {"loss": "ppo_clip", "aggregate": "seq_mean_token_mean"}, {"loss_type": "grpo"}
    ),
    "seq_mean_token_sum": Case(
        {"loss": "ppo_clip", "aggregate": "seq_mean_token_sum"}, {"loss_type": "luspo"}
    ),
    "seq_mean_token_sum_norm": Case(
        {
            "loss": "ppo_clip",
            "aggregate": "seq_mean_token_sum_norm",
            "aggregate_norm": WIDEST,
        },
        {"loss_type": "dr_grpo"},
    ),
    "policy_gradient": Case({"loss": "policy_gradient"}, {}, same_value=False, on_policy=True),
    "clip_higher": Case({"loss": "clip_higher"}, {"epsilon_high": 0.28}),
    "dual_clip": Case({"loss": "ppo_clip", "clip_dual": 1.25}, {"delta": 1.25}),
    "gspo": Case(
        {"loss": "gspo", "clip_low": 0.05, "clip_high": 0.1, "aggregate": "seq_mean_token_mean"},
        GSPO | {"epsilon_low": 0.05, "epsilon_high": 0.1},
    ),
    "cispo": Case({"loss": "cispo"}, {"loss_type": "cispo", "epsilon_high": 1.28}),
    "soft_gate": Case(
        {"loss": "soft_gate", "aggregate": "seq_mean_token_mean"}, {"loss_type": "sapo"}
    ),
    "k3": Case({"loss": "ppo_clip", "kl": RuleChoice("k3", (("weight", 0.3),))}, {"beta": 0.3}),
}


@pytest.fixture(scope="module")
def trl_trainer(model_directory: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL's own, in this process, on the model that ours is trained on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast
        from trl import GRPOConfig, GRPOTrainer

        words = {f"w{number}": number for number in range(VOCABULARY)}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")),
            pad_token="w0",
            eos_token="w0",
        )
        arguments = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=2,
            num_generations=2,
            gradient_checkpointing=False,
            disable_dropout=True,
        )
        made = GRPOTrainer(
            model=loaded(model_directory),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["w1"]}),
            processing_class=tokenizer,
        )
    made.model.eval()
    return made


def some_answers() -> list[Sample]:
    """Two tokens of a prompt, an answer with an observation in it; ratios on both sides of 1."""
    random = np.random.default_rng(5)
    made = []
    for number in range(8):
        first, second = random.integers(1, 6, size=2)
        mask = [0, 0] + [1] * first + [0] * (number % 2) + [1] * second
        ids = random.integers(1, VOCABULARY, size=len(mask))
        logprobs = [m * (-2.5 + random.uniform(-0.6, 0.6)) for m in mask]
        made_of = sequence(ids, mask, logprobs)
        made.append(sample(scored(f"r{number}", float(number % 3), sequences=(made_of,)), number))
    return made


@pytest.mark.parametrize("name", CASES)
def test_costs_and_gradients_match_those_of_trl(name: str, trl_trainer: Any) -> None:
    case = CASES[name]
    samples = some_answers()
    model = trl_trainer.model
    reference = reference_of(model)

    cost, gradients = ours(model, reference, samples, LearnerConfig(entropy=0.0, **case.ours))
    loss, theirs = of_trl(trl_trainer, reference, samples, case)

    if case.same_value:
        assert cost == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs.values())
    for parameter, gradient in theirs.items():
        torch.testing.assert_close(gradients[parameter], gradient, rtol=1e-4, atol=1e-5)


def reference_of(model: torch.nn.Module) -> torch.nn.Module:
    """Another policy than the trained one, always the same."""
    torch.manual_seed(3)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return reference


def ours(
    model: torch.nn.Module,
    reference: torch.nn.Module,
    samples: list[Sample],
    config: LearnerConfig,
) -> tuple[float, dict[str, torch.Tensor]]:
    def pieces(batch: Any) -> Any:
        return micro_batches(batch, config.computation.micro_batch_tokens)

    batch = with_logprobs(make_batch(samples, config), pieces, {"ref": reference}, 1.0)
    model.zero_grad(set_to_none=True)
    gradient = Gradient(model, config, config.rules.objective, 0)
    for micro in pieces(batch):
        gradient.add(micro)
    return gradient.cost, gradients_of(model)


def of_trl(
    trl_trainer: Any, reference: torch.nn.Module, samples: list[Sample], case: Case
) -> tuple[float, dict[str, torch.Tensor]]:
    for key, value in (THEIRS | dict(case.theirs)).items():
        of_arguments = key in ("delta", "sapo_temperature_pos", "sapo_temperature_neg")
        setattr(trl_trainer.args if of_arguments else trl_trainer, key, value)
    inputs = inputs_of(samples, case)
    if trl_trainer.beta:
        inputs["ref_per_token_logps"] = answers_lp(reference, inputs)
    trl_trainer.model.zero_grad(set_to_none=True)
    loss = trl_trainer.compute_loss(trl_trainer.model, inputs)
    loss.backward()
    return loss.item(), gradients_of(trl_trainer.model)


def inputs_of(samples: list[Sample], case: Case) -> dict[str, torch.Tensor]:
    """Answers padded on the right; what is not sampled in them is masked like a tool's words."""
    batch = make_batch(samples, CONFIG)
    rows = [(sample.scored.trajectory.sequences or ())[0] for sample in samples]
    ids, mask, tool, old = (torch.zeros(len(rows), WIDEST) for _ in range(4))
    for b, row in enumerate(rows):
        count = len(row.loss_mask) - 2
        ids[b, :count] = torch.tensor(ids_of(row.token_ids)[2:].tolist())
        mask[b, :count] = 1
        tool[b, :count] = torch.tensor([float(m) for m in row.loss_mask[2:]])
        old[b, :count] = torch.tensor(logprobs_of(row.behaviour_logprobs)[2:].tolist())
    given = {
        "prompt_ids": torch.tensor([ids_of(row.token_ids)[:2].tolist() for row in rows]),
        "prompt_mask": torch.ones(len(rows), 2, dtype=torch.int64),
        "completion_ids": ids.long(),
        "completion_mask": mask.long(),
        "tool_mask": tool.long(),
        "advantages": torch.tensor(batch.advantages_N, dtype=torch.float32),
        "num_items_in_batch": (mask * tool).sum(),
    }
    return given if case.on_policy else given | {"old_per_token_logps": old}


def answers_lp(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        log_p = model(ids, attention_mask=mask).logits[:, 1:-1].log_softmax(-1)
    lp: torch.Tensor = log_p.gather(2, inputs["completion_ids"][:, :, None])[:, :, 0]
    return lp


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
