"""Log-probabilities of a batch's tokens under other weights, or the current ones before a step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.pieces import MicroBatch
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.learner.forward import forward
from rollcall.trainer.rules.rewards import Floats, Ints, Rewards
from rollcall.trainer.rules.step_sizes import StepStart
from rollcall.trainer.weights.tensors import load_tensors

Pieces = Callable[[Batch], Iterable[MicroBatch]]
PastWeights = Callable[[int], Mapping[str, RawTensor] | None]
"""A function that returns the weights of a version; None if they are gone."""
Floats32 = NDArray[np.float32]


def with_logprobs(
    batch: Batch,
    pieces: Pieces,
    models: Mapping[str, nn.Module],
    temperature: float,
    sure_of: str = "",
) -> Batch:
    """Add each model's log-probabilities to the batch, by the model's name, in one pass.

    Without gradients; 0 where the mask is 0. `sure_of` names the model whose entropies are added.
    """
    found: dict[int, dict[str, Floats32]] = {}
    for micro in pieces(batch) if models else ():
        for name, model in models.items():
            for row, lp_T, entropy_T in _scores(model, micro, batch, temperature):
                seen = found.setdefault(row, {})
                seen[name] = lp_T
                if name == sure_of:
                    seen["entropy"] = entropy_T
    rows = [replace(row, seen={**row.seen, **found.get(b, {})}) for b, row in enumerate(batch.rows)]
    return replace(batch, rows=tuple(rows))


def with_own_logprobs(batch: Batch) -> Batch:
    """Set μ of shared text, which has no sampler of ours, to the model's own at the step's start.

    Its first ratios are then 1, and no correction changes it. `with_logprobs` must have run before.
    """
    rows = [
        replace(row, behaviour_logprobs=row.seen["prox"]) if row.off_policy_text else row
        for row in batch.rows
    ]
    return replace(batch, rows=tuple(rows))


def with_snapshots(
    batch: Batch,
    pieces: Pieces,
    scratch: nn.Module,
    past: PastWeights,
    temperature: float,
) -> Batch:
    """Add the log-probabilities under the weights that sampled each token, as `snapshot`.

    nan on sampled tokens whose weights are gone, 0 on other tokens. `scratch` is a model of the
    same shape; its weights are overwritten.
    """
    seen = [
        np.where(row.mask, np.float32(np.nan), np.float32(0)).astype(np.float32)
        for row in batch.rows
    ]
    for version in sorted({int(v) for row in batch.rows for v in row.versions[row.mask]}):
        tensors = past(version)
        if tensors is None:
            continue
        load_tensors(scratch, tensors)
        own = [b for b, row in enumerate(batch.rows) if _of(row.versions, row.mask, version).any()]
        part = replace(batch, rows=tuple(batch.rows[b] for b in own))
        for micro in pieces(part):
            for at, lp_T, _ in _scores(scratch, micro, part, temperature):
                row = part.rows[at]
                there = _of(row.versions, row.mask, version)
                seen[own[at]][there] = lp_T[there]
    rows = [
        replace(row, seen={**row.seen, "snapshot": lp_T})
        for row, lp_T in zip(batch.rows, seen, strict=True)
    ]
    return replace(batch, rows=tuple(rows))


def with_scores(batch: Batch, rewards: Rewards) -> Rewards:
    """Add to the rewards the quantities that reward rules need from extra passes."""
    rows = batch.rows
    if rows and all("ref" in row.seen for row in rows):
        gaps: list[list[Floats]] = [[np.zeros(0)] for _ in batch.lengths_N]
        for row in rows:
            apart = row.behaviour_logprobs.astype(np.float64) - row.seen["ref"]
            gaps[row.trajectory].append(apart[row.mask])
        rewards = replace(rewards, kl=tuple(map(np.concatenate, gaps)))
    if rows and all("prox" in row.seen for row in rows):
        rewards = replace(rewards, log_weights_N=_log_weights(batch)[0])
    return rewards


def step_start(batch: Batch) -> StepStart:
    """Return the input of step-size rules; empty if the batch has no `prox`."""
    sums_N, seen_N = _log_weights(batch)
    return StepStart(sums_N[seen_N > 0], seen_N[seen_N > 0])


def _log_weights(batch: Batch) -> tuple[Floats, Ints]:
    """Return per trajectory Σ_t of lp less μ over tokens that have `prox`, and their count, [N]."""
    count = len(batch.lengths_N)
    sums_N, seen_N = np.zeros(count), np.zeros(count, dtype=np.int64)
    for row in batch.rows:
        prox = row.seen.get("prox")
        if prox is not None:
            apart = prox.astype(np.float64) - row.behaviour_logprobs
            sums_N[row.trajectory] += apart[row.mask].sum()
            seen_N[row.trajectory] += int(row.mask.sum())
    return sums_N, seen_N


def _scores(
    model: nn.Module, micro: MicroBatch, batch: Batch, temperature: float
) -> Iterator[tuple[int, Floats32, Floats32]]:
    """Yield each row of a piece with its log-probabilities and entropies, [T]."""
    with torch.no_grad():
        scores = forward(model, micro, temperature)
    lp_BT, entropy_BT = scores.lp_BT.cpu().numpy(), scores.entropy_BT.cpu().numpy()
    for b, row in enumerate(micro.rows):
        width = len(batch.rows[row].token_ids)
        yield row, lp_BT[b, :width].copy(), entropy_BT[b, :width].copy()


def _of(versions: NDArray[np.int32], mask: NDArray[np.bool_], version: int) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = mask & (versions == version)
    return there


def gradient_norms(batch: Batch, pieces: Pieces, model: nn.Module, temperature: float) -> Floats:
    """‖∇ Σ_t log π(token_t)‖² of each trajectory over all parameters, [N].

    The sum over its sampled tokens, in all of its sequences, is not normalised; 0 if there are
    none. Costs one forward and backward pass per trajectory; gradients in the parameters stay
    unchanged.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    norms_N = np.zeros(len(batch.lengths_N))
    for number in sorted({row.trajectory for row in batch.rows}):
        own = replace(batch, rows=tuple(r for r in batch.rows if r.trajectory == number))
        total = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        for micro in pieces(own):
            lp = forward(model, micro, temperature).lp_BT.sum()
            for sum_, found in zip(total, _gradient(lp, parameters), strict=True):
                if found is not None:
                    sum_ += found
        norms_N[number] = sum(float(each.square().sum()) for each in total)
    return norms_N


def _gradient(
    value: torch.Tensor, parameters: list[nn.Parameter]
) -> tuple[torch.Tensor | None, ...]:
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        value, parameters, allow_unused=True
    )
    return found
