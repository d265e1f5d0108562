"""The canary: tokens whose scores show that trainer and engine compute the same network.

It proves that configuration, arithmetic and cache are those of the trainer. It cannot tell two
neighbouring versions apart, since they differ by less than the rounding of half precision. Whether
the loaded tensors are the published ones is checked bit by bit
(`rollcall.inference.load_weights.require_held`).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rollcall.inference.key_values import BatchKv
from rollcall.inference.policy_dir import Policy
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.packed import ids_of, logprobs_of

TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1.5e-1}
"""The allowed error of the canary in nats, for log-probabilities down to `USUAL`; it grows in
proportion for lower ones, since rounding errors grow with the logits."""
USUAL = 10.0
HALF = ("float16", "bfloat16")
"""Precisions that are checked by the median error over the tokens, float32 by the largest: in half
precision, single tokens of a correct model are off by many times the usual rounding error."""


def prove(policy: Policy, version: PolicyVersion) -> None:
    """Score the canary with the loaded weights; raises WorkFailed(`canary`) if it is off."""
    prove_by(lambda ids: _score(policy, ids), policy, version)


def prove_by(
    score: Callable[[Sequence[int]], NDArray[np.float32]], policy: Policy, version: PolicyVersion
) -> None:
    """Like `prove`; `score` returns the natural log-probabilities of ids[1:] at temperature 1."""
    ids, expected = ids_of(version.canary_ids).tolist(), logprobs_of(version.canary_logprobs)
    size = policy.model.config.vocab_size
    if not 2 <= len(ids) <= policy.context or not 0 <= min(ids) <= max(ids) < size:
        msg = (
            f"the canary of version {version.version} has {len(ids)} tokens; it needs 2 to "
            f"{policy.context}, all of them 0 to {size - 1}"
        )
        raise WorkFailed(FailureCode.CANARY, msg, retriable=False)
    apart = np.abs(score(ids) - expected)
    off = float(np.median(apart) if policy.precision in HALF else apart.max())
    allowed = TOLERANCE[policy.precision] * max(1.0, float(np.median(-expected)) / USUAL)
    # Written so that NaN fails.
    if not (off <= allowed and np.isfinite(apart).all()):
        msg = (
            f"the canary of version {version.version} is off by {off:.3g} nats, allowed are "
            f"{allowed:.3g} in {policy.precision}; do trainer and "
            "engine have the same config, and was every tensor loaded?"
        )
        raise WorkFailed(FailureCode.CANARY, msg, retriable=False)


def _score(policy: Policy, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the natural log-probabilities of ids[1:] at temperature 1, [T - 1].

    The tokens are fed in two parts, so that the cache is tested too.
    """
    kv = BatchKv(policy.model, rows=1, columns=len(ids))
    half = len(ids) // 2
    parts = [(0, ids[:half]), (half, ids[half:-1])]
    logits = [kv.forward([0], [begin], [part], keep=len(part))[0] for begin, part in parts if part]
    logprob_TV = torch.cat(logits).float().log_softmax(-1)
    chosen_T1 = torch.from_numpy(np.asarray(ids[1:])).to(logprob_TV.device)[:, None]
    return np.asarray(logprob_TV.gather(1, chosen_T1)[:, 0].cpu())
