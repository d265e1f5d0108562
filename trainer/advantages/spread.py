"""Deviation of rewards from their mean, in float64 on the CPU: a re-run gives the same bits.

std divides by n − 1.
"""

from rollcall.trainer.rewards import Floats

EPSILON = 1e-4


def centred(rewards: Floats) -> Floats:
    """R − mean."""
    middle = float(rewards.mean())
    return rewards - middle


def whitened(rewards: Floats) -> Floats:
    """(R − mean) / (std + 1e-4)."""
    scale = float(rewards.std(ddof=1)) + EPSILON
    return centred(rewards) / scale
