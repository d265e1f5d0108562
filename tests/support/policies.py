"""Small policies, versions of them and calls to them, for the tests of this room."""

from collections.abc import Sequence
from pathlib import Path

import torch

from rollcall.inference.engine import Engine, EngineAnswer
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.ids import call_seed, command_id
from rollcall.schemas.messages import (
    CallFailed,
    Message,
    ModelAnswered,
    ModelCall,
    PolicyVersion,
    Sampling,
)
from rollcall.schemas.packed import ids_of, pack_ids, pack_logprobs
from rollcall.schemas.weights import RawTensor, write_weights
from tests.support.waiting import give_way

GPT2 = {
    "model_type": "gpt2", "vocab_size": 32, "n_positions": 96, "n_embd": 64, "n_layer": 2,
    "n_head": 2, "bos_token_id": 0, "eos_token_id": 0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
ROTARY = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1200,
}  # fmt: skip
CONFIGS = {
    "gpt2": GPT2,
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, **ROTARY},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, **ROTARY},
}
WORDS = {"kind": "words", "bos": "<bos>", "turn": "<a>"}
CHARACTERS = {
    "kind": "roles", "bos": "<bos>", "end": "<eos>",
    "before": {"system": "", "user": "", "tool": "", "assistant": "<a>"},
}  # fmt: skip


def lake(directory: Path, config: str = "gpt2") -> Path:
    return make_policy(
        directory, config=CONFIGS[config] | {"vocab_size": 32, "eos_token_id": None},
        tokens="lake", template=WORDS, seed=3,
    )  # fmt: skip


def writer(directory: Path) -> Path:
    """A policy that writes characters and ends with `<eos>`."""
    return make_policy(
        directory, config=CONFIGS["qwen2"], tokens="characters", template=CHARACTERS, seed=4
    )


def weighted(policy: Path, number: int) -> torch.nn.Module:
    """The policy's model with the weights of a version; opinionated, so that mistakes show."""
    model = load_policy(policy).model
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def logprobs(model: torch.nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Full forward pass, no cache, no batch: [T - 1, V] for the tokens after the first."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0, :-1].float().log_softmax(-1)


def version_of(
    policy: Path, number: int, *, policy_id: str = "policy", canary_off_by: float = 0.0
) -> PolicyVersion:
    """Publish a version as a trainer would."""
    model = weighted(policy, number)
    tensors = {
        name: RawTensor("F32", tuple(parameter.shape), parameter.numpy().tobytes())
        for name, parameter in model.named_parameters()
    }
    canary = [0, 14, 1, 3, 10, 1, 2, 5]
    rows = zip(logprobs(model, canary), canary[1:], strict=True)
    scored = [row[token].item() for row, token in rows]
    file = write_weights((policy / "weights").as_uri(), number, tensors)
    return PolicyVersion(
        policy_id, number, number - 1, "run", number, file.weights_digest, file,
        pack_ids(canary), pack_logprobs(score + canary_off_by for score in scored),
    )  # fmt: skip


def call(
    rollout: str = "r0", position: int = 0, *, said: str | Sequence[Message] = "s7",
    prefix: bytes | None = b"", prefix_length: int | None = None, attempt: int = 1,
    min_policy_version: int = 0, policy_id: str = "policy", sequence: int = 0, **sampling: object,
) -> ModelCall:  # fmt: skip
    messages = (Message("user", said),) if isinstance(said, str) else tuple(said)
    return ModelCall(
        rollout, attempt, position, 0, command_id(rollout, attempt, position, 0),
        f"{rollout} {position}".encode(), 0, 0, "sample", policy_id, sequence, messages,
        Sampling(**{"max_tokens": 1, **sampling}), call_seed(rollout, attempt, position), prefix,
        len(prefix or b"") // 4 if prefix_length is None else prefix_length,
        min_policy_version=min_policy_version,
    )  # fmt: skip


def take(engine: Engine, version: PolicyVersion) -> None:
    """Stage a version and adopt it, as a server does between two steps."""
    engine.stage(version)
    engine.adopt()


def run(engine: Engine, *calls: ModelCall, max_steps: int = 200_000) -> list[EngineAnswer]:
    """Add the calls and step until nothing is left to do; answers in the order of the calls.

    An engine that computes elsewhere is given the time that it says.
    """
    for one in calls:
        engine.add(one)
    answers: list[EngineAnswer] = []
    for _ in range(max_steps):
        if not engine.busy():
            break
        answers += engine.step()
        if engine.wait_s:
            give_way()
    assert not engine.busy()
    order = {one.command_id: index for index, one in enumerate(calls)}
    return sorted(answers, key=lambda answer: order.get(answer.call.command_id, -1))


def body(engine: Engine, one: ModelCall) -> ModelAnswered:
    [answer] = run(engine, one)
    assert isinstance(answer.body, ModelAnswered), answer.body
    return answer.body


def failure(engine: Engine, one: ModelCall) -> CallFailed:
    [answer] = run(engine, one)
    assert isinstance(answer.body, CallFailed), answer.body
    return answer.body


def after(one: ModelCall, answered: ModelAnswered) -> bytes:
    """The exact tokens so far, as the next call carries them."""
    return (one.prefix_ids or b"") + answered.added_ids + answered.token_ids


def tokens(packed: bytes) -> list[int]:
    return ids_of(packed).tolist()
