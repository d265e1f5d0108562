"""Sampling for a whole batch at once, with noise that depends on the call and not on the batch.

The draw for the n-th token of a call is a function of (call.seed, n) alone: a counter-based hash
(SplitMix64) gives one uniform number, which picks from the cumulative distribution. A call
therefore samples the same tokens alone, in any batch and after an interruption, as long as its
logits agree.

Shapes: R rows (calls), V tokens of the vocabulary.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed_R: NDArray[np.uint64], count_R: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) per row from seed and count. Source: SplitMix64 (Steele)."""
    mixed = _mix(_mix(seed_R) + (count_R + np.uint64(1)) * GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def draw(
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, uniform_R: Tensor
) -> tuple[list[int], list[float]]:
    """Sample one token per row; return the tokens and their natural log-probabilities.

    The log-probability is float32, of the distribution that was sampled from: after temperature,
    then top-k (0: off), then top-p. Temperature 0 takes the likeliest token and reports its
    log-probability at temperature 1, unfiltered; such answers are for evaluation, not training.
    """
    logits_RV = logits_RV.float()
    greedy_R = temperature_R == 0
    if bool(((temperature_R != 1) & ~greedy_R).any()):
        logits_RV = logits_RV / torch.where(greedy_R, 1.0, temperature_R)[:, None]
    filtered = torch.nonzero(~greedy_R & ((top_k_R > 0) | (top_p_R < 1)))[:, 0]
    if len(filtered):
        logits_RV = logits_RV.index_copy(
            0, filtered, _filter(logits_RV[filtered], top_k_R[filtered], top_p_R[filtered])
        )
    logprob_RV = logits_RV.log_softmax(-1)
    token_R = _pick(logprob_RV, uniform_R)
    if bool(greedy_R.any()):
        token_R = torch.where(greedy_R, logprob_RV.argmax(-1), token_R)
    return token_R.tolist(), logprob_RV.gather(1, token_R[:, None])[:, 0].tolist()


def _pick(logprob_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the first token whose cumulative probability exceeds its row's uniform number."""
    # float64: a float32 sum over a large vocabulary has errors above many probabilities.
    cumulated_RV = logprob_RV.double().exp().cumsum(-1)
    target_R1 = uniform_R[:, None] * cumulated_RV[:, -1:]
    token_R = torch.searchsorted(cumulated_RV, target_R1, right=True)[:, 0]
    return token_R.clamp(max=logprob_RV.shape[1] - 1)


def _filter(logits_RV: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """Return logits with minus infinity outside the top k, and outside the smallest set that holds
    top p of the rest."""
    sorted_RV, order_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    k_R1 = torch.where(top_k_R > 0, top_k_R, logits_RV.shape[1])[:, None]
    sorted_RV = sorted_RV.masked_fill(rank_V >= k_R1, -torch.inf)
    probability_RV = sorted_RV.softmax(-1)
    before_RV = probability_RV.cumsum(-1) - probability_RV
    outside_RV = (before_RV >= top_p_R[:, None]) & (rank_V > 0) & (top_p_R < 1)[:, None]
    sorted_RV = sorted_RV.masked_fill(outside_RV, -torch.inf)
    return torch.empty_like(logits_RV).scatter_(1, order_RV, sorted_RV)
