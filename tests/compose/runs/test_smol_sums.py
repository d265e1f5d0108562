"""Recipes of a pretrained language model, without the model: their questions and templates."""

import tomllib
from pathlib import Path

import pytest
import torch
from reasoning_gym import create_dataset
from transformers import AutoModelForCausalLM, LlamaConfig

from rollcall.compose.runs.recipe import Recipe, load_recipe
from rollcall.inference.chat import template_of
from rollcall.inference.gguf_policy import make_gguf_policy
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Message
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.weights.adapters import with_adapters
from tests.support import tiny_gguf
from tests.support.command_line import call

NAME_OF_LORA = "smol-sums-lora"
SMOLLM2 = LlamaConfig(
    hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True,
)  # fmt: skip
"""The shape of SmolLM2-135M."""


def questions(recipe: Recipe, first: int, end: int) -> set[str]:
    config = recipe.task.environment_config
    return {
        create_dataset(config["dataset"], seed=seed, size=1, **config["config"])[0]["question"]
        for seed in range(first, end)
    }


def test_held_out_two_digit_sums_are_not_trained_on() -> None:
    recipe = load_recipe("smol-long-sums")[0]

    trained, held_out = (
        questions(recipe, *s) for s in (recipe.task.seeds, recipe.evaluation.seeds)
    )

    assert len(trained) == 505
    assert len(held_out) == 64
    assert not trained & held_out


def test_template_begins_the_answer(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf")
    make_gguf_policy(
        tmp_path / "tiny.gguf", tmp_path / "tiny", template={"kind": "chatml"}, kept={}
    )
    tokenizer = load_policy(tmp_path / "tiny").tokenizer

    for name in ("smol-sums", "smol-long-sums", "smol-sums-lora"):
        template = template_of(load_recipe(name)[0].policy.template, tokenizer)
        ids = template.render([Message("user", "2 + 3 =")], first=True, ended=False)
        wanted = "<|im_start|>user\n2 + 3 =<|im_end|>\n<|im_start|>assistant\nThe answer is"
        assert tokenizer.decode(ids) == wanted
        assert template.end_ids == {2}


def test_the_two_recipes_differ_only_in_questions_and_scale() -> None:
    one, two = (tomllib.loads(load_recipe(name)[1]) for name in ("smol-sums", "smol-long-sums"))

    apart = {
        "advantage", "exploration", "lr", "steps", "groups_per_step", "group_size",
        "micro_batch_tokens",
    }  # fmt: skip

    assert one["policy"] == two["policy"]
    assert {key: value for key, value in one["learner"].items() if key not in apart} == {
        key: value for key, value in two["learner"].items() if key not in apart
    }
    assert LearnerConfig.of(one["learner"]).computation.packing == "shared"


def test_exploration_covers_both_signs_of_the_first_token() -> None:
    """216 and 731 are "Ġ" and "Ġ-" of SmolLM2's tokenizer, which no test here has."""
    options = LearnerConfig.of(load_recipe("smol-sums")[0].learner_values(1)).rules.exploration

    assert options.rule.name == "uniform_kl"
    assert (options.options.first, options.options.tokens) == (1, (216, 731))


def test_adapter_recipe_asks_the_same_and_trains_under_5_mb() -> None:
    whole, adapted = (tomllib.loads(load_recipe(name)[1]) for name in ("smol-sums", NAME_OF_LORA))
    for part in ("scorers", "task", "limits", "sampling"):
        assert adapted[part] == whole[part]
    assert adapted["evaluation"]["seeds"] == whole["evaluation"]["seeds"]
    config = LearnerConfig.of(load_recipe(NAME_OF_LORA)[0].learner_values(1))
    assert config.adapter_alone
    assert config.lora is not None

    with torch.device("meta"):
        model = with_adapters(AutoModelForCausalLM.from_config(SMOLLM2), config.lora)

    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 30
    assert sum(p.numel() * p.element_size() for p in trained) == 3_686_400


def test_run_without_the_model_names_the_fetch_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(Refused, match="`rollcall policy fetch smollm2 --to smollm2`"):
        call(None, "run", "smol-sums", "--log", "memory")
