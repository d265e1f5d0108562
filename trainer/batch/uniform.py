"""The distance of a policy from the uniform distribution over tokens."""

from math import log

import numpy as np
import torch
from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import ChosenRule, Need
from rollcall.trainer.rules.rewards import Bools, Exploration


def uniform_tokens_of(rule: ChosenRule[Exploration], vocabulary: int) -> tuple[int, ...] | None:
    """Return the token ids of a rule's uniform distribution, () for all; None without such a rule.

    Raises Refused for ids that the model does not have.
    """
    if not rule.needs(Need.UNIFORM):
        return None
    tokens: tuple[int, ...] = getattr(rule.options, "tokens", ())
    if max(tokens, default=0) >= vocabulary:
        msg = (
            f"exploration {rule.rule.name!r}: tokens has {max(tokens)}, and the policy has "
            f"{vocabulary} tokens; give ids below that"
        )
        raise Refused(msg)
    return tokens


def first_of_turns(mask_T: Bools, count: int) -> Bools:
    """Return a mask of the first `count` sampled tokens of each turn, bool [T]; 0: all.

    A turn is a run of sampled tokens between two inputs.
    """
    if not count:
        return mask_T
    # At each token, the sampled ones before its turn: the count at the last unsampled token.
    sampled_T = np.cumsum(mask_T)
    before_turn_T = np.maximum.accumulate(np.where(mask_T, 0, sampled_T))
    return mask_T & (sampled_T - before_turn_T <= count)


def uniform_kl_of(logits_UV: Tensor, tokens: tuple[int, ...], temperature: float) -> Tensor:
    """KL(U ‖ softmax(logits / T)) per position, [U], nats; U is uniform over `tokens`, or all.

    −mean_{v ∈ V} log p(v) − log |V|, with a gradient. Log-probabilities are clamped to −1000
    nats, without a gradient below. Raises IndexError for an id outside the vocabulary.
    """
    z_UV = (logits_UV.float() if logits_UV.dtype.itemsize < 4 else logits_UV) / temperature
    lse_U = z_UV.logsumexp(dim=-1)
    if tokens:
        z_UV = z_UV[:, torch.tensor(tokens, device=z_UV.device)]
    log_p_UW = (z_UV - lse_U[:, None]).clamp(min=-1000.0)
    return -log_p_UW.mean(dim=-1) - log(z_UV.shape[1])
