"""A version is served only with the tensors it was published with, in every precision."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference import transformers_engine
from rollcall.inference.canary import prove
from rollcall.inference.load_weights import SecondSet, require_held
from rollcall.inference.policy_dir import DTYPES, Policy, load_policy, make_policy
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.packed import pack_ids, pack_logprobs
from tests.support.policies import CONFIGS, WORDS, version_of
from tests.support.tiers import examples

PRECISIONS = list(DTYPES)
LOGITS = 12.0
"""Standard deviation of the logits, as large as those of trained models."""


def policy_in(precision: str, directory: Path) -> Policy:
    made = make_policy(
        directory / precision,
        config={**CONFIGS["llama"], "vocab_size": 32, "eos_token_id": None},
        tokens="lake",
        template=WORDS,
        seed=3,
        precision=precision,
    )
    return load_policy(made)


def logprobs_in_float32(model: torch.nn.Module, ids: list[int]) -> list[float]:
    """The trainer's log-probabilities of a canary."""
    whole = model.to(torch.float32)
    with torch.no_grad():
        log_p = whole(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return [log_p[at, token].item() for at, token in enumerate(ids[1:])]


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ids=st.lists(st.integers(0, 31), min_size=16, max_size=16), number=st.integers(0, 5))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_correct_model_with_large_logits_passes_any_canary(
    tmp_path_factory: pytest.TempPathFactory, precision: str, ids: list[int], number: int
) -> None:
    policy = policy_in(precision, Path(tmp_path_factory.getbasetemp()) / "sound")
    generator = torch.Generator().manual_seed(number)
    for tensor in policy.model.parameters():
        tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype), alpha=0.2)
    head = policy.model.lm_head.weight
    with torch.no_grad():
        spread = policy.model(torch.tensor([ids])).logits.float().std()
    head.mul_((LOGITS / spread).to(head.dtype))
    version = version_for(policy, ids)

    prove(policy, version)

    off = replace(version, canary_logprobs=pack_logprobs([-3.0] * 15))
    with pytest.raises(WorkFailed, match="canary"):
        prove(policy, off)


def version_for(policy: Policy, ids: list[int]) -> PolicyVersion:
    told = logprobs_in_float32(deepcopy(policy.model), ids)
    return PolicyVersion("policy", 1, 0, "run", 1, "", None, pack_ids(ids), pack_logprobs(told))  # type: ignore[arg-type]


Harm = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], None]


def keep_all(held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    for name in held:
        held[name].copy_(before[name])


def keep_one(held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    name = max(held, key=lambda each: held[each].numel())
    held[name].copy_(before[name])


def exchange(held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    one, other = (f"model.layers.{n}.self_attn.q_proj.weight" for n in (0, 1))
    first = held[one].clone()
    held[one].copy_(held[other])
    held[other].copy_(first)


def transpose(held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    square = held["model.layers.0.self_attn.q_proj.weight"]
    square.copy_(square.T.clone())


def flip_one_bit(held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    held["model.norm.weight"].view(torch.uint8)[0] ^= 1


@pytest.mark.parametrize("harm", [keep_all, keep_one, exchange, transpose, flip_one_bit])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tensors_that_differ_from_the_version_are_detected(
    tmp_path: Path, precision: str, harm: Harm
) -> None:
    model = policy_in(precision, tmp_path).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    published = {name: _stepped(tensor) for name, tensor in before.items()}
    held = model.state_dict()
    for name, tensor in published.items():
        held[name].copy_(tensor)
    version = PolicyVersion("policy", 1, 0, "run", 1, "", None, bytes(4), b"")  # type: ignore[arg-type]
    require_held(model, version, published)

    harm(held, before)

    with pytest.raises(WorkFailed, match="holds other tensors than version 1"):
        require_held(model, version, published)


def _stepped(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest other value of every weight: the smallest step that there is."""
    bits = tensor.clone().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    bits.bitwise_xor_(1)
    return bits.view(tensor.dtype)


def test_an_engine_with_one_stale_tensor_keeps_the_previous_version(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine("policy", lake)
    engine.stage(version_of(lake, 1))
    engine.adopt()
    read = transformers_engine.second_set

    def forgetful(*given: object) -> SecondSet:
        made = read(*given)  # type: ignore[arg-type]
        return replace(made, other=(made.own[0].data.clone(), *made.other[1:]))

    monkeypatch.setattr(transformers_engine, "second_set", forgetful)
    engine.stage(version_of(lake, 2))

    with pytest.raises(WorkFailed, match="holds other tensors than version 2"):
        engine.adopt()
    assert engine.version == 1
