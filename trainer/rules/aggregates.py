"""Aggregation of per-token losses into one number: the weight of each token's cost.

Weights already contain every denominator, so the loss is one sum, and a batch in pieces gives the
gradient of the whole. Denominators count tokens before any masking by a loss. Trajectories without
a sampled token are left out of numerator and denominator.
"""

from collections.abc import Callable

import numpy as np

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Rule, choose, table
from rollcall.trainer.rules.rewards import Floats, Ints

Aggregate = Callable[..., Floats]
"""A function of (lengths [N], norm) to weights [N]."""


def token_mean(lengths_N: Ints, norm: int) -> Floats:
    """Σ_i Σ_t ℓ / Σ_i n_i. Source: DAPO, arXiv 2503.14476, §3.3."""
    return np.full(len(lengths_N), 1.0 / max(lengths_N.sum(), 1))


def seq_mean_token_mean(lengths_N: Ints, norm: int) -> Floats:
    """mean_i (Σ_t ℓ / n_i). Source: DeepSeekMath, arXiv 2402.03300, eq. 3."""
    return 1.0 / (np.maximum(lengths_N, 1) * _sequences(lengths_N))


def seq_mean_token_sum(lengths_N: Ints, norm: int) -> Floats:
    """mean_i Σ_t ℓ. Source: Back to Basics, arXiv 2402.14740, §3."""
    return np.full(len(lengths_N), 1.0 / _sequences(lengths_N))


def seq_mean_token_sum_norm(lengths_N: Ints, norm: int) -> Floats:
    """mean_i Σ_t ℓ / L, L a constant of the run, never a batch's width.

    Source: Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2.
    """
    if norm < 1:
        msg = f"aggregate seq_mean_token_sum_norm needs aggregate_norm >= 1, found {norm}; set it "
        raise Refused(msg + "to the run's maximum of new tokens")
    return np.full(len(lengths_N), 1.0 / (norm * _sequences(lengths_N)))


AGGREGATES = table(
    Rule("token_mean", "aggregate", "DAPO, arXiv 2503.14476, §3.3", token_mean),
    Rule(
        "seq_mean_token_mean",
        "aggregate",
        "DeepSeekMath, arXiv 2402.03300, eq. 3",
        seq_mean_token_mean,
    ),
    Rule(
        "seq_mean_token_sum",
        "aggregate",
        "Back to Basics, arXiv 2402.14740, §3",
        seq_mean_token_sum,
    ),
    Rule(
        "seq_mean_token_sum_norm",
        "aggregate",
        "Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2",
        seq_mean_token_sum_norm,
    ),
)


def token_weights(aggregate: str, lengths_N: Ints, norm: int = 0) -> Floats:
    """Return the factor of each token's cost per trajectory, so that the loss is one sum, [N]."""
    weights: Floats = choose("aggregate", aggregate, AGGREGATES).rule.function(lengths_N, norm)
    return weights


def _sequences(lengths_N: Ints) -> int:
    return max(int((lengths_N > 0).sum()), 1)
