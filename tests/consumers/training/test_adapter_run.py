"""A run with servers that get only its adapter: the training is unchanged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from rollcall.compose.runs.export_policy import export
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.schemas.adapter_weights import AdapterAbout
from rollcall.schemas.errors import Refused, Unfit
from rollcall.schemas.published_weights import HeldWeights
from rollcall.trainer.checkpoints.checkpoint import kept, load, load_latest
from rollcall.trainer.weights.publication import rounded
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

ALONE = (
    RECIPE
    + """
[policy.lora]
rank = 2
"""
)
ALONE = ALONE.replace("[policy]\n", '[policy]\nweights = "adapter"\npublish = "bfloat16"\n')


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("save", cases(["sync", "async"], {"async"}))
def test_servers_add_the_adapter_and_every_step_is_retrained_bit_for_bit(
    tmp_path: Path, save: str
) -> None:
    world = World(tmp_path, ALONE.replace("[learner]\n", f'[learner]\nsave = "{save}"\n'))
    with capture_logs() as logs:
        world.train(world.trainer(), steps=2)
        world.train(world.trainer())

    versions = world.versions()
    assert [version.version for version in versions] == [0, 1, 2, 3, 4]
    assert all(not version.deltas for version in versions)
    adopted = [entry["version"] for entry in logs if entry["event"] == "version_adopted"]
    assert adopted[-1] >= 3
    assert not [entry for entry in logs if entry["event"] in ("version_refused", "canary_mismatch")]
    newest = load_latest(world.folder.run().checkpoints).checkpoint
    assert newest is not None
    assert AdapterAbout.of(newest.state.weights) is not None
    assert HeldWeights().read(versions[-1]) == rounded(newest.state.weights)
    again = world.trained_again(1, 4)
    assert [step.identical for step in again] == [True] * 4


def test_a_lost_adapter_is_rewritten_by_the_next_trainer(tmp_path: Path) -> None:
    world = World(tmp_path, ALONE)
    world.train(world.trainer(), steps=2)
    lost = world.versions()[-1]
    Path(lost.full.uri.removeprefix("file://")).unlink()

    world.train(world.trainer())

    assert HeldWeights().read(lost)
    assert [step.version for step in world.steps()] == [1, 2, 3, 4]


def test_a_full_weights_run_may_continue_with_the_adapter_alone(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, ALONE.replace('weights = "adapter"\n', ""))
    world.train(world.trainer(), steps=2)
    recipe = world.folder.recipe
    policy = recipe.policy.model_copy(update={"weights": "adapter"})
    object.__setattr__(world.folder, "recipe", recipe.model_copy(update={"policy": policy}))

    world.train(world.trainer())

    kinds = [AdapterAbout.of(HeldWeights().read(each)) for each in world.versions()]
    assert [kind is None for kind in kinds] == [True, True, True, False, False]
    assert {load(path).version for path in kept(world.folder.run().checkpoints).values()} >= {3, 4}


def test_a_trainer_with_a_different_base_model_does_not_begin(tmp_path: Path) -> None:
    world = World(tmp_path, ALONE)
    world.train(world.trainer(), steps=1)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(world.folder.policy)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.add_(1)
    model.save_pretrained(world.folder.policy)

    with pytest.raises(Unfit, match="base of the checkpoint's adapter has digest"):
        world.trainer()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_export_is_a_peft_adapter_or_a_merged_model(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    world = World(tmp_path / "w", ALONE)
    world.train(world.trainer())

    assert export(world.folder, tmp_path / "adapter") == 4
    assert export(world.folder, tmp_path / "merged", merge=True) == 4

    base = AutoModelForCausalLM.from_pretrained(world.folder.policy)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        plain = base(ids).logits
        models = (
            AutoModelForCausalLM.from_pretrained(tmp_path / "merged"),
            AutoModelForCausalLM.from_pretrained(tmp_path / "adapter"),
            PeftModel.from_pretrained(base, str(tmp_path / "adapter")),
        )
        merged, *adapted = (model(ids).logits for model in models)
    for each in adapted:
        torch.testing.assert_close(each, merged, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(merged, plain, atol=1e-4)
    assert not list((tmp_path / "merged").glob("adapter*"))
    assert sorted(path.name for path in (tmp_path / "adapter").glob("*.safetensors")) == [
        "adapter_model.safetensors"
    ]


@pytest.mark.parametrize(
    ("given", "field"), [("rank = 3", "rank 3"), ("rank = 2\nalpha = 5.0", "alpha 5")]
)
def test_an_adapter_is_not_exported_with_wrong_options(
    tmp_path: Path, given: str, field: str
) -> None:
    world = World(tmp_path / "w", ALONE)
    world.trainer()
    edited = replace(world.folder, recipe=parse_recipe(ALONE.replace("rank = 2", given), "tiny"))

    for merge in (False, True):
        with pytest.raises(Refused, match=rf"has {field} in \[policy.lora\]"):
            export(edited, tmp_path / "out", merge=merge)

    assert not (tmp_path / "out").exists()
