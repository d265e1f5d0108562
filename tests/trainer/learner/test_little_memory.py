"""If memory is short, a batch is computed in smaller pieces, down to single rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rollcall.schemas.errors import BatchFailed, Unfit
from rollcall.trainer.batch.pieces import MicroBatch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner import gradient, scoring_pass
from rollcall.trainer.learner.forward import Forward, forward
from rollcall.trainer.learner.out_of_memory import OutOfMemory, is_out_of_memory
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.learner.streaming import by_group
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.tensors import tensor_of
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples
from tests.support.tiers import cases

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20, old_logprobs="recompute")
ENDS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
)


class Device:
    """One that computes so many tokens at once and no more."""

    def __init__(self, most: int, error: Exception) -> None:
        self.most, self.error = most, error
        self.failed = 0

    def forward(self, model: nn.Module, micro: MicroBatch, *rest: Any) -> Forward:
        given = micro.token_ids_BT if micro.shared is None else micro.shared.token_ids_PW
        if given.numel() > self.most:
            self.failed += 1
            raise self.error
        return forward(model, micro, *rest)


Put = Callable[[int, Exception], Device]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    torch.set_num_threads(1)

    def put(most: int, error: Exception) -> Device:
        device = Device(most, error)
        for module in (gradient, scoring_pass):
            monkeypatch.setattr(module, "forward", device.forward)
        return device

    return put


def in_groups(seed: int) -> list[Sample]:
    """Four groups of three, with prompts that are shared."""
    return [replace(s, compared_in=f"g{n % 4}") for n, s in enumerate(some_samples(seed))]


KINDS: dict[str, dict[str, Any]] = {
    "rows": {}, "shared": {"packing": "shared"}, "packed": {"packing": "packed"},
    "minibatches": {"minibatch": 6},
    "streamed": {"stream": True, "max_staleness": 0, "advantage": "grpo"},
}  # fmt: skip


@pytest.mark.parametrize("most", cases([80, 33, 12], {33}))
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_does_not_fit_is_trained_in_smaller_pieces(
    model_directory: str, put: Put, kind: str, most: int
) -> None:
    config, samples = changed(CONFIG, **KINDS[kind]), in_groups(3)
    whole, small, again = (Learner(model_directory, config) for _ in range(3))
    whole.step(samples)

    device = put(most, ENDS[most % len(ENDS)])
    told = small.step(samples)

    assert ("piece_tokens" in told) == bool(device.failed)
    ours, theirs = small.tensors(), whole.tensors()
    for name, raw in ours.items():
        torch.testing.assert_close(tensor_of(raw), tensor_of(theirs[name]), rtol=1e-3, atol=1e-4)

    # A replay of the record has the same pieces, and so the same bits.
    failed = device.failed
    again.follow_pieces(told)
    assert again.step(samples) == told
    assert again.state() == small.state()
    assert device.failed == failed


def test_a_streamed_group_that_does_not_fit_is_recomputed_with_the_others(
    model_directory: str, put: Put
) -> None:
    """As in the trainer: a batch that could not be streamed becomes a step of its own."""
    learner = Learner(model_directory, changed(CONFIG, **KINDS["streamed"]))
    streaming = learner.streaming()
    first, *others = by_group(in_groups(3))
    learner.stream(streaming, first)

    put(12, ENDS[0])
    with pytest.raises(BatchFailed, match="computed anew, in smaller pieces"):
        learner.stream(streaming, others[0])
    assert "piece_tokens" in learner.step(in_groups(3))


@pytest.mark.parametrize("kind", cases(KINDS))
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_a_single_row_that_does_not_fit_fails_and_changes_nothing(
    model_directory: str, put: Put, kind: str, error: Exception
) -> None:
    learner = Learner(model_directory, changed(CONFIG, **KINDS[kind]))
    before = learner.state()

    put(3, error)
    with pytest.raises(Unfit, match=r"not even for a single row; .*gradient_checkpointing"):
        learner.step(in_groups(3))

    assert learner.state() == before
    put(10**6, error)
    learner.step(in_groups(3))
    assert learner.version == 1


def test_out_of_memory_in_the_optimiser_does_not_blame_the_batch(model_directory: str) -> None:
    learner = Learner(model_directory, CONFIG)

    def full() -> None:
        raise ENDS[0]

    learner._updates.optimiser.step = full  # type: ignore[method-assign, assignment]
    with pytest.raises(Unfit, match=r"broke off while it changed the weights.*OutOfMemory"):
        learner.step(in_groups(3))


def test_a_device_failure_does_not_blame_the_batch(model_directory: str, put: Put) -> None:
    learner = Learner(model_directory, CONFIG)

    put(3, torch.AcceleratorError("CUDA error: unspecified launch failure"))
    with pytest.raises(Unfit, match="the device failed"):
        learner.step(in_groups(3))


def test_only_out_of_memory_errors_are_recognised_as_such() -> None:
    assert all(map(is_out_of_memory, ENDS))
    others = (
        RuntimeError("shapes differ"),
        ValueError("out of memory"),
        OutOfMemory("out of memory"),
    )
    assert not any(map(is_out_of_memory, others))
