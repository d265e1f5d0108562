"""vLLM, which fuses tensors, serves only a version's own tensors, proven by digest."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollcall.inference.canary import prove_by
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.inference.vllm_engine import VllmEngine
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.packed import ids_of, pack_ids, pack_logprobs
from rollcall.schemas.weights import RawTensor, write_weights
from tests.support.engines import left_out
from tests.support.policies import CONFIGS, WORDS, body, call, logprobs, take
from tests.support.vllm_cores import Cores

pytestmark = pytest.mark.vllm
CORES = Cores()
HEADS = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Of 32, for vLLM has no kernel for narrower ones."""
CANARY = [0, 14, 1, 3, 10, 1, 2, 5]
FUSED = {
    "model.layers.0.self_attn.v_proj.weight": "model.layers.0.self_attn.qkv_proj.weight",
    "model.layers.1.self_attn.k_proj.weight": "model.layers.1.self_attn.qkv_proj.weight",
    "model.layers.1.mlp.up_proj.weight": "model.layers.1.mlp.gate_up_proj.weight",
}
"""Published tensors, and those of vLLM that they are a part of."""
APART = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_policy(
        tmp_path_factory.mktemp("policies") / "llama",
        tokens="lake",
        template=WORDS,
        seed=3,
        config=CONFIGS["llama"] | HEADS | {"vocab_size": 32, "eos_token_id": None},
        precision="bfloat16",
    )
    CORES.close()


@pytest.fixture
def serving(policy: Path) -> Iterator[VllmEngine]:
    if find_spec("vllm") is None:
        left_out("vllm", "the proof of its weights; `make vllm` installs it")
    engine = VllmEngine("policy", policy, start=CORES.lend)
    take(engine, version(policy, 1))
    yield engine
    CORES.take_back()


def version(policy: Path, number: int) -> PolicyVersion:
    """Neighbours differ by the smallest step that bfloat16 has."""
    model = load_policy(policy).model
    for parameter in model.parameters():
        parameter.view(torch.int16).bitwise_xor_(number & 1)
    raw = {
        name: RawTensor("BF16", tuple(held.shape), held.view(torch.int16).numpy().tobytes())
        for name, held in model.named_parameters()
    }
    file = write_weights((policy / "weights").as_uri(), number, raw)
    rows = zip(logprobs(model.float(), CANARY), CANARY[1:], strict=True)
    return PolicyVersion(
        "policy",
        number,
        number - 1,
        "run",
        number,
        file.weights_digest,
        file,
        pack_ids(CANARY),
        pack_logprobs(row[token].item() for row, token in rows),
    )


def harm(engine: VllmEngine, name: str, tensor: torch.Tensor | None) -> None:
    """Have vLLM read another tensor than was published, or none."""
    assert engine._staged is not None
    tensors = load_file(engine._staged.file)
    held = tensors.pop(name)
    if tensor is not None:
        tensors[name] = tensor.reshape(held.shape)
    save_file(tensors, engine._staged.file)


def one_of(policy: Path, number: int, name: str) -> torch.Tensor:
    held = load_policy(policy).model.get_parameter(name).data
    return (held.view(torch.int16) ^ (number & 1)).view(torch.bfloat16)


def test_digests_tell_versions_apart_that_a_canary_cannot(
    serving: VllmEngine, policy: Path
) -> None:
    core = serving._shared.core
    assert core is not None
    prove_by(core.score, serving.policy, version(policy, 2))  # vLLM has version 1
    serving.stage(version(policy, 2))
    assert serving._staged is not None
    wanted = serving._staged.digests.by_name
    for name in wanted:
        harm(serving, name, one_of(policy, 1, name))

    with pytest.raises(WorkFailed, match=rf"than version 2 .* {len(wanted)} in all") as caught:
        serving.adopt()

    assert (caught.value.code, serving.version) == ("weights", 1)
    take(serving, version(policy, 2))
    assert set(ids_of(body(serving, call(max_tokens=4)).versions).tolist()) == {2}


@pytest.mark.parametrize("name", [*FUSED, *APART])
def test_one_stale_tensor_is_named_and_the_previous_version_stays(
    serving: VllmEngine, policy: Path, name: str
) -> None:
    serving.stage(version(policy, 2))
    harm(serving, name, one_of(policy, 1, name))

    with pytest.raises(WorkFailed, match=rf"than version 2 .*: {name}, 1 in all"):
        serving.adopt()

    assert set(ids_of(body(serving, call(max_tokens=4)).versions).tolist()) == {1}


@pytest.mark.parametrize("name", [*FUSED, *APART])
def test_a_skipped_tensor_is_named_with_the_stale_vllm_parameter(
    serving: VllmEngine, policy: Path, name: str
) -> None:
    serving.stage(version(policy, 2))
    harm(serving, name, None)

    with pytest.raises(
        WorkFailed, match=rf": {name}, 1 in all.* from before: {FUSED.get(name, name)}"
    ):
        serving.adopt()

    assert serving.version == 1
