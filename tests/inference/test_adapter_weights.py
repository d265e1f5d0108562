"""An adapter is served beside the policy's directory like the merged weights, or refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall.inference.engine import EngineAnswer
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.adapter_weights import DOWN, KIND, UP, AdapterAbout, base_digest
from rollcall.schemas.errors import WeightsDiffer, WorkFailed
from rollcall.schemas.messages import ModelAnswered, PolicyVersion
from rollcall.schemas.packed import ids_of, logprobs_of, pack_ids, pack_logprobs
from rollcall.schemas.weights import RawTensor, read_weights, write_weights
from tests.support import policies

RANK, ALPHA = 2, 8.0
MODULES = {
    "gpt2": ("transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc"),
    "llama": ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"),
}
CANARY = (0, 14, 1, 3, 10, 1, 2, 5)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def raw(tensor: torch.Tensor) -> RawTensor:
    return RawTensor("F32", tuple(tensor.shape), tensor.contiguous().numpy().tobytes())


def base_of(directory: Path) -> dict[str, RawTensor]:
    return {name: raw(p.float()) for name, p in load_policy(directory).model.named_parameters()}


def publish(
    directory: Path, number: int, tensors: dict[str, RawTensor], canary: bytes
) -> PolicyVersion:
    file = write_weights((directory / "weights").as_uri(), number, tensors, by_tensor=True)
    return PolicyVersion(
        "policy",
        number,
        number - 1,
        "run",
        number,
        file.weights_digest,
        file,
        pack_ids(CANARY),
        canary,
    )


def adapted(directory: Path, config: str, number: int) -> tuple[PolicyVersion, PolicyVersion]:
    """A version as an adapter alone, and the same merged under the next number."""
    model = load_policy(directory).model
    generator = torch.Generator().manual_seed(number)
    transposed = config == "gpt2"
    about = AdapterAbout(base_digest(base_of(directory)), RANK, ALPHA, transposed)
    tensors = {KIND: about.tensor()}
    for module in MODULES[config]:
        weight = model.get_submodule(module).weight
        out, into = reversed(weight.shape) if transposed else weight.shape
        down = torch.randn((RANK, into), generator=generator)
        up = torch.randn((out, RANK), generator=generator)
        tensors |= {module + DOWN: raw(down), module + UP: raw(up)}
        added = up @ down * (ALPHA / RANK)
        weight.add_((added.T if transposed else added).to(weight.dtype))
    merged = {name: raw(p.float()) for name, p in model.named_parameters()}
    rows = zip(policies.logprobs(model, CANARY), CANARY[1:], strict=True)
    canary = pack_logprobs(row[token].item() for row, token in rows)
    return publish(directory, number, tensors, canary), publish(
        directory, number + 1, merged, canary
    )


def answers(engine: TransformersEngine) -> list[EngineAnswer]:
    for rollout in range(4):
        engine.add(policies.call(f"r{rollout}", said=f"s{rollout} L", max_tokens=8))
    found: list[EngineAnswer] = []
    while engine.busy():
        found += engine.step()
    return sorted(found, key=lambda answer: answer.call.rollout_id)


def bodies(engine: TransformersEngine) -> list[tuple[list[int], list[float]]]:
    made = [answer.body for answer in answers(engine)]
    assert all(isinstance(body, ModelAnswered) for body in made)
    return [(ids_of(b.token_ids).tolist(), logprobs_of(b.logprobs).tolist()) for b in made]  # type: ignore[union-attr]


@pytest.mark.parametrize("config", MODULES)
def test_an_adapter_gives_the_answers_of_the_merged_weights(tmp_path: Path, config: str) -> None:
    directory = policies.lake(tmp_path / "p", config)
    alone, merged = adapted(directory, config, 1)
    one, other = (TransformersEngine("policy", directory) for _ in range(2))
    policies.take(one, alone)
    policies.take(other, merged)

    for (ids, said), (wanted, expected) in zip(bodies(one), bodies(other), strict=True):
        assert ids == wanted
        assert said == pytest.approx(expected, abs=1e-4)


def test_tensors_without_an_adapter_are_shared_between_versions(tmp_path: Path) -> None:
    directory = policies.lake(tmp_path / "p", "llama")
    engine = TransformersEngine("policy", directory)
    policies.take(engine, adapted(directory, "llama", 1)[0])
    first = {n: p.data_ptr() for n, p in engine.policy.model.named_parameters()}
    policies.take(engine, adapted(directory, "llama", 3)[0])

    moved = {n for n, p in engine.policy.model.named_parameters() if p.data_ptr() != first[n]}
    assert moved == {f"{module}.weight" for module in MODULES["llama"]}


def test_adapters_and_full_weights_can_follow_one_another(tmp_path: Path) -> None:
    directory = policies.lake(tmp_path / "p", "llama")
    (first, _), (third, fourth) = (adapted(directory, "llama", number) for number in (1, 3))
    fifth = replace(first, version=5, full=replace(first.full, version=5))
    engine, fresh = (TransformersEngine("policy", directory) for _ in range(2))
    for version in (first, third, fourth, fifth):
        policies.take(engine, version)
    policies.take(fresh, first)
    replica = engine.replica()
    policies.take(replica, third)
    policies.take(other := TransformersEngine("policy", directory), third)

    assert bodies(engine) == bodies(fresh)
    assert bodies(replica) == bodies(other)


def test_an_adapter_in_a_bfloat16_directory_matches_the_trainers_base(tmp_path: Path) -> None:
    directory = make_policy(
        tmp_path / "p",
        config=policies.CONFIGS["llama"] | {"vocab_size": 32},
        tokens="lake",
        template=policies.WORDS,
        seed=3,
        precision="bfloat16",
    )
    engine = TransformersEngine("policy", directory)

    policies.take(engine, adapted(directory, "llama", 1)[0])

    assert engine.version == 1


def changed(version: PolicyVersion, directory: Path, **tensors: RawTensor) -> PolicyVersion:
    """Version 9, with other tensors in its file."""
    weights = read_weights(version.full) | tensors
    return publish(directory, 9, weights, version.canary_logprobs)


def test_an_adapter_of_another_base_rank_or_model_is_refused(tmp_path: Path) -> None:
    directory = policies.lake(tmp_path / "p", "llama")
    version, _ = adapted(directory, "llama", 1)
    about = AdapterAbout.of(read_weights(version.full))
    assert about is not None
    module = MODULES["llama"][0]
    down = raw(torch.zeros(RANK, 32))
    broken = [
        (
            {KIND: replace(about, base="tensors:else").tensor()},
            "whose base has digest tensors:else",
        ),
        ({KIND: replace(about, rank=3).tensor()}, r"of rank 3 for .* with ranks \[2, 3\]"),
        ({module + DOWN: raw(torch.zeros(RANK, 31))}, r"shape \(16, 31\) .* has \(16, 32\) there"),
        (
            {"model.odd" + DOWN: down, "model.odd" + UP: down},
            "module 'model.odd' .* has None there",
        ),
    ]
    engine = TransformersEngine("policy", directory)
    policies.take(engine, version)
    before = bodies(engine)

    for tensors, complaint in broken:
        wrong = changed(version, directory, **tensors)
        with pytest.raises(WorkFailed, match=complaint) as caught:
            policies.take(engine, wrong)
        assert (caught.value.code, caught.value.retriable) == ("weights", False)
    half = changed(version, directory, **{"model.half" + UP: down})
    with pytest.raises(WeightsDiffer, match=r"one matrix of modules \['model.half'\]"):
        policies.take(engine, half)
    assert bodies(engine) == before


def test_an_adapter_is_refused_if_the_directory_has_changed(tmp_path: Path) -> None:
    directory = policies.lake(tmp_path / "p", "llama")
    version, _ = adapted(directory, "llama", 1)
    engine = TransformersEngine("policy", directory)
    policies.weighted(directory, 1).save_pretrained(directory)

    with pytest.raises(WorkFailed, match="serve the directory that its run began with"):
        policies.take(engine, version)
