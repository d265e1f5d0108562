"""Adapters are trained, their merged weights announced, and restored after a restart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall.schemas.adapter_weights import KIND, AdapterAbout, base_digest
from rollcall.schemas.errors import Refused, Unfit
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Lora
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights.adapters import merged, with_adapters
from rollcall.trainer.weights.publication import rounded, widened
from rollcall.trainer.weights.tensors import load_tensors
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples
from tests.support.tiers import cases

LORA = Lora(rank=2, alpha=8.0)
CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20, lora=LORA)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


ALONE = changed(CONFIG, adapter_alone=True)


def trained(directory: str, config: LearnerConfig = CONFIG) -> Learner:
    learner = Learner(directory, config)
    for number in range(2):
        learner.step(some_samples(number))
    return learner


def test_adapters_start_as_no_change_and_only_they_are_trained(model_directory: str) -> None:
    plain = Learner(model_directory, changed(CONFIG, lora=None))
    learner = Learner(model_directory, CONFIG)

    assert learner.tensors() == plain.tensors()
    assert learner.canary() == plain.canary()

    learner.step(some_samples(0))
    moved = {name for name, raw in learner.tensors().items() if raw != plain.tensors()[name]}

    assert moved
    assert all(name.endswith(".weight") and ".h." in name for name in moved)
    moments = {name.rpartition("/")[0] for name in learner.state().optimiser if "exp_avg" in name}
    assert moments
    assert all(".lora_" in name for name in moments)


def test_announced_tensors_give_the_logits_of_the_adapted_model(model_directory: str) -> None:
    learner = trained(model_directory)
    engine = loaded(model_directory).eval()
    load_tensors(engine, learner.tensors())
    ids = torch.arange(8)[None]

    with torch.no_grad():
        ours, theirs = learner.model(ids).logits, engine(ids).logits

    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("published", cases(["", "bfloat16"], {"bfloat16"}))
def test_the_canary_is_scored_by_the_announced_tensors(
    model_directory: str, published: str
) -> None:
    learner = trained(model_directory)
    learner.published = published
    engine = Learner(model_directory, changed(CONFIG, lora=None))
    engine.published = published
    load_tensors(engine.model, learner.tensors())
    before = learner.state()

    assert learner.canary() == engine.canary()
    assert learner.state() == before


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"adapter_alone": True},
        {"gradient_checkpointing": True},
        {"precision": "bfloat16", "packing": "packed"},
    ],
)
def test_a_learner_resumes_from_saved_adapters_bit_for_bit(
    model_directory: str, how: dict[str, object]
) -> None:
    config = LearnerConfig.of({"lr": 1e-2, "kl": "k3", "lora": {"rank": 2}} | how)
    first, second = trained(model_directory, config), Learner(model_directory, config)
    second.load(first.state())

    assert second.state() == first.state()
    assert second.step(some_samples(5)) == first.step(some_samples(5))
    assert second.tensors() == first.tensors()


def test_only_named_targets_have_adapters(model_directory: str) -> None:
    named = Lora(rank=1, targets=("mlp.c_fc",))
    model = with_adapters(loaded(model_directory), named)

    adapted = [name for name, each in model.named_parameters() if each.requires_grad]

    assert len(adapted) == 2 * model.config.n_layer
    assert all("mlp.c_fc.lora_" in name for name in adapted)
    assert merged(model).keys() == Learner(model_directory, LearnerConfig()).tensors().keys()


def test_adapters_of_other_weights_or_another_rank_are_refused(
    model_directory: str, tmp_path: Path
) -> None:
    state = trained(model_directory).state()
    other = loaded(model_directory)
    with torch.no_grad():
        other.transformer.wpe.weight.add_(1)
    other.save_pretrained(tmp_path)

    with pytest.raises(Unfit, match=r"'transformer.wpe.weight' of the policy's directory is not"):
        Learner(str(tmp_path), CONFIG).load(state)
    with pytest.raises(Unfit, match=r"is \(2, 16\) in the checkpoint and \(3, 16\) in the model"):
        Learner(model_directory, changed(CONFIG, lora=Lora(rank=3))).load(state)
    with pytest.raises(Unfit, match=r"no adapter .* made without \[policy.lora\]"):
        Learner(model_directory, CONFIG).load(replace(state, optimiser={}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lora": {"rank": 0}}, "rank is 0; give a number of at least 1"),
        ({"lora": {"alpha": 0}}, "alpha is 0; give a number above 0"),
        ({"lora": {"ranks": 4}}, "'lora.ranks'; did you mean 'lora.rank'"),
        ({"lora": {}, "loss": "ppo_ewma"}, "does not go with what needs 'ewma', an average"),
        ({"lora": {}, "old_logprobs": "snapshot"}, "what needs 'snapshot', the weights of then"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of(values)


@pytest.mark.parametrize("targets", [("q_proj",), ("ln_1",)])
def test_targets_that_match_no_module_are_refused(
    model_directory: str, targets: Sequence[str]
) -> None:
    with pytest.raises(Refused, match=f"targets of lora are '{targets[0]}': "):
        Learner(model_directory, changed(CONFIG, lora=Lora(targets=tuple(targets))))


def test_adapters_change_the_digest_of_a_configuration() -> None:
    assert LearnerConfig.of({"lora": {}}).digest() != LearnerConfig().digest()
    assert LearnerConfig(lora=LORA).digest() != LearnerConfig(lora=Lora(rank=3, alpha=8)).digest()


def test_an_adapter_alone_names_its_base_and_is_small(model_directory: str) -> None:
    base = Learner(model_directory, changed(CONFIG, lora=None)).tensors()
    whole, alone = trained(model_directory), trained(model_directory, ALONE)

    tensors = alone.tensors()
    assert AdapterAbout.of(tensors) == AdapterAbout(base_digest(base), 2, 8.0, transposed=True)
    assert all(".lora_A.weight" in n or ".lora_B.weight" in n for n in tensors if n != KIND)
    assert merged(alone.model) == whole.tensors()
    assert not any("/adapter" in name for name in alone.state().optimiser)
    sizes = [sum(len(raw.data) for raw in each.values()) for each in (tensors, base)]
    assert sizes[0] < sizes[1] / 2


@pytest.mark.parametrize("published", cases(["", "bfloat16"], {"bfloat16"}))
def test_the_canary_of_an_adapter_alone_matches_the_servers_weights(
    model_directory: str, published: str
) -> None:
    learner = trained(model_directory, ALONE)
    learner.published = published
    before = learner.state()
    given = rounded(before.weights) if published else before.weights
    server = Learner(model_directory, ALONE)
    server.load(replace(before, weights=widened(given)))

    assert learner.canary() == server.canary()
    assert learner.state() == before


@pytest.mark.parametrize(("saved", "now"), [(CONFIG, ALONE), (ALONE, CONFIG)])
def test_a_resumed_learner_may_change_the_announced_form(
    model_directory: str, saved: LearnerConfig, now: LearnerConfig
) -> None:
    first, second = trained(model_directory, saved), Learner(model_directory, now)
    second.load(first.state())

    assert saved.digest() == now.digest()
    assert merged(second.model) == merged(first.model)
    assert second.step(some_samples(5)) == first.step(some_samples(5))
    assert merged(second.model) == merged(first.model)


@pytest.mark.parametrize("now", [CONFIG, ALONE])
def test_an_adapter_is_refused_beside_another_base_by_name(
    model_directory: str, tmp_path: Path, now: LearnerConfig
) -> None:
    state = trained(model_directory, ALONE).state()
    other = loaded(model_directory)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.weight[0, 0] += 1  # under an adapter, too
    other.save_pretrained(tmp_path)

    with pytest.raises(Unfit, match=r"base of the checkpoint's adapter has digest tensors:.* have"):
        Learner(str(tmp_path), now).load(state)
    with pytest.raises(Unfit, match=r"was rank of lora changed\?"):
        Learner(model_directory, changed(now, lora=Lora(rank=3))).load(state)


def test_announcing_an_adapter_alone_without_adapters_is_refused() -> None:
    with pytest.raises(Refused, match=r"weights 'adapter' .* none is trained; add \[policy.lora\]"):
        LearnerConfig.of({"adapter_alone": True})
    with pytest.raises(Refused, match="adapter_alone is 1; give true or false"):
        LearnerConfig.of({"adapter_alone": 1, "lora": {}})
