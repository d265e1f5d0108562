"""The recipe sets precision and memory of a step; the same choice gives the same bits."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rollcall.schemas.errors import Refused
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.arithmetic import compute_twice, computing, require_precision
from rollcall.trainer.learner.step import Learner
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples
from tests.support.tiers import cases

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20)
MODES = [
    {"precision": precision, "gradient_checkpointing": twice, "packing": packing}
    for precision in ("float32", "bfloat16")
    for twice, packing in ((False, "packed"), (True, "rows"), (True, "packed"))
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("mode", cases(MODES, 2), ids=str)
def test_the_same_batches_give_the_same_bits_in_every_mode(
    model_directory: str, mode: dict[str, object]
) -> None:
    learners = [Learner(model_directory, LearnerConfig.of(mode)) for _ in range(2)]

    told = [[learner.step(some_samples(n)) for n in range(2)] for learner in learners]

    assert told[0] == told[1]
    assert learners[0].state() == learners[1].state()
    assert {tensor.dtype for tensor in learners[0].state().optimiser.values()} == {"F32"}
    assert {tensor.dtype for tensor in learners[0].tensors().values()} == {"F32"}


def test_gradient_checkpointing_changes_no_bit(model_directory: str) -> None:
    plain, twice = (
        Learner(model_directory, changed(CONFIG, gradient_checkpointing=on)) for on in (False, True)
    )

    assert plain.step(some_samples(0)) == twice.step(some_samples(0))
    assert plain.state() == twice.state()
    assert plain.config.digest() == twice.config.digest()


def test_gradient_checkpointing_works_with_dropout_off(model_directory: str) -> None:
    learner = Learner(model_directory, changed(CONFIG, gradient_checkpointing=True))
    times = []
    learner.model.transformer.h[1].mlp.c_fc.register_forward_hook(lambda *_: times.append(1))

    learner.step(some_samples(0))

    assert len(times) == 2
    assert not any(module.training for module in learner.model.modules())


def test_a_copied_model_recomputes_its_own_layers(model_directory: str) -> None:
    model = Learner(model_directory, changed(CONFIG, gradient_checkpointing=True)).model
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_proj.weight.add_(1)
        ids = torch.arange(4)[None]

        assert not torch.equal(other(ids).logits, model(ids).logits)


def test_bfloat16_is_used_for_products_only(model_directory: str) -> None:
    plain, rounded = (
        Learner(model_directory, changed(CONFIG, precision=name))
        for name in ("float32", "bfloat16")
    )
    seen = []
    for learner in (plain, rounded):
        learner.model.transformer.h[0].mlp.c_proj.register_forward_hook(
            lambda _, __, out: seen.append(out.dtype)
        )

    told = [learner.step(some_samples(0)) for learner in (plain, rounded)]

    assert seen == [torch.float32, torch.bfloat16]
    assert told[0]["entropy"] == pytest.approx(told[1]["entropy"], rel=1e-2)
    assert told[0] != told[1]
    assert plain.canary() != rounded.canary()
    assert plain.config.digest() != rounded.config.digest()


def test_an_incapable_model_or_device_is_refused_with_the_reason(model_directory: str) -> None:
    class NotMadeForIt(torch.nn.Linear):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
            del use_cache
            return self.weight @ input_ids.float()

    with pytest.raises(Refused, match=r"'bfloat16' on cpu with NotMadeForIt: RuntimeError: mm"):
        require_precision(NotMadeForIt(3, 3), "bfloat16")
    with pytest.raises(Refused, match="gradient_checkpointing: NotMadeForIt names no layers"):
        compute_twice(NotMadeForIt(3, 3))
    require_precision(NotMadeForIt(3, 3), "float32")
    model = Learner(model_directory, CONFIG).model
    with torch.no_grad():
        model.transformer.wte.weight.mul_(torch.inf)
    with pytest.raises(Refused, match="its logits are not finite; give precision 'float32'"):
        require_precision(model, "bfloat16")


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:77", "device 'cuda:77' cannot be used"), ("gpu", "device 'gpu' cannot be used: .*cpu")],
)
def test_a_missing_device_is_refused(model_directory: str, device: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        Learner(model_directory, CONFIG, device=device)


def test_a_model_without_named_layers_is_refused_at_loading(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "ctrl", vocab_size=12, n_positions=16, n_embd=8, dff=8, n_layer=1, n_head=2
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(Refused, match="CTRLLMHeadModel names no layers"):
        Learner(str(tmp_path), changed(CONFIG, gradient_checkpointing=True))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"precision": "bf16"}, "unknown precision 'bf16'; did you mean 'bfloat16'"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"gradient_checkpointing": "yes"}, "gradient_checkpointing is 'yes'; give true or false"),
    ],
)
def test_an_invalid_precision_setting_is_refused_by_name(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of(values)


def test_float32_enables_no_autocast() -> None:
    with computing("float32", torch.device("cpu")):
        assert not torch.is_autocast_enabled("cpu")
    with computing("bfloat16", torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu")
