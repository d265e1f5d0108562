"""The cost of leaving a frozen reference matches published values."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions, RuleChoice
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.catalogue import KLS
from rollcall.trainer.rules.kl import no_reference
from tests.support.changed_config import changed
from tests.support.golden import golden
from tests.support.scored_trajectories import some_samples
from tests.support.token_views import piece

CONFIG = LearnerConfig(entropy=0.0, lr=1e-2, steps=20, loss="policy_gradient")


def one(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


@golden("kl", "k1", "k2", "k3")
@pytest.mark.parametrize(
    ("name", "estimate", "slope"), [("k1", 0.2, 1), ("k2", 0.02, 0.2), ("k3", 0.018731, 0.181269)]
)
def test_kl_estimates_match_published_values(name: str, estimate: float, slope: float) -> None:
    def at(lp: float) -> torch.Tensor:
        lp_BT = one(lp).requires_grad_()
        view = piece(lp_BT, one(-1), 1.0, ref_BT=one(-1.2))
        kl_BT: torch.Tensor = KLS[name](view, KLS[name].options())
        kl_BT.sum().backward()
        assert lp_BT.grad is not None
        gradients.append(lp_BT.grad.item())
        return kl_BT.detach()

    gradients: list[float] = []
    assert at(-1.0).item() == pytest.approx(estimate, abs=5e-7)
    difference = (at(-1.0 + 1e-6) - at(-1.0 - 1e-6)).item() / 2e-6
    assert gradients[0] == pytest.approx(difference, rel=1e-6)
    assert gradients[0] == pytest.approx(slope, abs=5e-7)


@golden("kl", "none")
def test_without_a_reference_the_penalty_is_zero() -> None:
    assert no_reference(piece(one(-1), one(-2), 1.0), NoOptions()).item() == 0


def test_only_k2_has_the_gradient_of_the_kl() -> None:
    """Over all words of a policy of three: Σ p·∂k2 is ∇KL(π ‖ ref), Σ p·∂k1 is 0."""
    logits_V = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    ref_V = torch.tensor([0.1, 0.4, -0.3], dtype=torch.float64).log_softmax(-1)
    lp_V = logits_V.log_softmax(-1)
    p_V = lp_V.detach().exp()
    (exact_V,) = torch.autograd.grad(
        (lp_V.exp() * (lp_V - ref_V)).sum(), logits_V, retain_graph=True
    )
    found = {}
    for name in ("k1", "k2"):
        view = piece(lp_V[None], ref_V[None], 1.0, ref_BT=ref_V[None])
        cost = (p_V * KLS[name](view, KLS[name].options())[0]).sum()
        (found[name],) = torch.autograd.grad(cost, logits_V, retain_graph=True)

    torch.testing.assert_close(found["k2"], exact_V)
    torch.testing.assert_close(found["k1"], torch.zeros_like(exact_V))


def test_a_kl_penalty_keeps_the_policy_near_its_start(model_directory: str) -> None:
    """Rewards drive both away; the penalised policy stays nearer, and starts at distance 0."""
    kl = RuleChoice("k2", (("weight", 5.0),))
    held, free = Learner(model_directory, changed(CONFIG, kl=kl)), Learner(model_directory, CONFIG)
    told = [held.step(some_samples(n)) for n in range(4)]
    for number in range(4):
        free.step(some_samples(number))

    assert told[0]["reference_kl"] == pytest.approx(0, abs=1e-9)
    begun = Learner(model_directory, CONFIG).model.state_dict()
    away = [
        sum(
            (learner.model.state_dict()[name] - tensor).norm().item()
            for name, tensor in begun.items()
        )
        for learner in (held, free)
    ]
    assert 0 < told[-1]["reference_kl"] < 0.1
    assert away[0] < away[1]
    # A learner that resumes has the reference of its directory, not of its checkpoint.
    again = Learner(model_directory, changed(CONFIG, kl=kl))
    again.load(held.state())
    assert again.step(some_samples(5)) == held.step(some_samples(5))


def distance(learner: Learner, other: Learner) -> float:
    """Between the weights of two."""
    pairs = zip(learner.model.parameters(), other.model.parameters(), strict=True)
    return sum((one - two).square().sum().item() for one, two in pairs)


def test_a_reference_with_another_vocabulary_is_refused(
    model_directory: str, tmp_path: Path
) -> None:
    small = GPT2Config(vocab_size=5, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    GPT2LMHeadModel(small).save_pretrained(tmp_path / "other")
    kl = RuleChoice("k3", (("directory", str(tmp_path / "other")),))

    with pytest.raises(Refused, match="has 5 tokens, the policy"):
        Learner(model_directory, changed(CONFIG, kl=kl))


def test_a_reference_with_a_shorter_context_is_refused(
    model_directory: str, tmp_path: Path
) -> None:
    config = GPT2Config.from_pretrained(model_directory)
    config.n_positions //= 2
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "short")
    kl = RuleChoice("k2", (("directory", str(tmp_path / "short")),))

    with pytest.raises(Refused, match=r"reads \d+ positions, the policy \d+; give one that reads"):
        Learner(model_directory, changed(CONFIG, kl=kl))


@pytest.mark.parametrize("body", [None, "{", "[]", '{"model_type": "no-such"}'])
def test_a_reference_that_is_not_a_model_is_refused_without_network(
    model_directory: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str | None
) -> None:
    if body is not None:
        (tmp_path / "config.json").write_text(body)
    kl = RuleChoice("k2", (("directory", str(tmp_path)),))

    with pytest.raises(Refused, match=r"no causal language model at .*; give a local") as refused:
        Learner(model_directory, changed(CONFIG, kl=kl))

    assert "\n" not in str(refused.value)
    assert not [each for each in caplog.records if each.name.startswith("huggingface_hub")]


@pytest.mark.parametrize("harm", ["cut", "other shapes"])
def test_a_reference_with_damaged_weights_is_refused_in_one_line(
    model_directory: str, tmp_path: Path, harm: str
) -> None:
    shutil.copytree(model_directory, tmp_path / "p")
    if harm == "cut":
        weights = tmp_path / "p" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        config = json.loads((tmp_path / "p" / "config.json").read_text())
        (tmp_path / "p" / "config.json").write_text(json.dumps({**config, "n_embd": 8}))
    kl = RuleChoice("k2", (("directory", str(tmp_path / "p")),))

    with pytest.raises(Refused, match=r"no causal language model at .*; give a local") as refused:
        Learner(model_directory, changed(CONFIG, kl=kl))

    assert "\n" not in str(refused.value)
