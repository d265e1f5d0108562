"""Metrics of a step: values per token and per trajectory, and their means in log order."""

from collections.abc import Sequence

import numpy as np

from rollcall.trainer.batch.rows import Batch


def token_metrics(tokens: Sequence[np.ndarray], more: Sequence[str] = ()) -> dict[str, float]:
    """Return means over sampled tokens, in log order; `more` names the rows after the fifth."""
    ratio, clipped, entropies, kl, log_ratios, *others = np.concatenate(tokens, axis=1)
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": float(clipped.mean()),
        "entropy": float(entropies.mean()),
        "approx_kl": float(kl.mean()),
        "log_ratio_abs_max": float(np.abs(log_ratios).max()),
    } | {name: float(each.mean()) for name, each in zip(more, others, strict=True)}


def batch_metrics(batch: Batch, version_now: int) -> dict[str, float]:
    """Return metrics of a batch; staleness_i = v_now − min version of its sampled tokens, without
    trajectories of other runs.
    """
    ours = batch.min_versions_N >= 0
    staleness = (version_now - batch.min_versions_N)[ours] if ours.any() else np.zeros(1)
    gap = teacher_gap(batch)
    return {
        "reward_mean": float(batch.rewards_N.mean()),
        "reward_std": float(batch.rewards_N.std()),
        "advantage_mean": float(batch.advantages_N.mean()),
        "advantage_std": float(batch.advantages_N.std()),
        "advantage_abs_max": float(np.abs(batch.advantages_N).max()),
        "staleness_mean": float(staleness.mean()),
        "staleness_max": float(staleness.max()),
        "length_mean": float(batch.lengths_N.mean()),
        "tokens": float(batch.tokens),
        "trajectories": float(len(batch.lengths_N)),
        "sequences": float(len(batch.rows)),
    } | ({} if gap is None else {"teacher_gap": gap})


def generation_gap(batch: Batch, tokens: Sequence[np.ndarray], version: int) -> dict[str, float]:
    """`gen_kl`: KL(engine ‖ trainer) where both had the same weights, from numbers per token.

    The mean of k3 over tokens that the current `version` sampled. Absent without such tokens: then
    the mismatch of the engine cannot be separated from later updates of the weights.
    """
    now = np.concatenate([row.versions[row.mask] for row in batch.rows]) == version
    if not now.any():
        return {}
    return {"gen_kl": float(np.concatenate(tokens, axis=1)[3][now].mean())}


def teacher_gap(batch: Batch) -> float | None:
    """Return the mean of μ − lp_teacher over tokens that a teacher scored, an estimate of
    KL(student ‖ teacher); None without a teacher.
    """
    gaps = [
        row.behaviour_logprobs[row.mask].astype(np.float64) - row.teacher[row.mask]
        for row in batch.rows
        if row.teacher is not None
    ]
    return float(np.concatenate(gaps).mean()) if gaps else None
