"""A fixed prompt that trainer and servers score, to detect a server with wrong weights."""

from dataclasses import dataclass

import torch
from torch import nn

from rollcall.schemas.packed import pack_ids, pack_logprobs

CANARY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Canary:
    """A fixed prompt and the learner's log-probabilities of it, packed as in PolicyVersion."""

    ids: bytes
    logprobs: bytes
    """Log-probabilities of ids[1:], float32."""


def canary_of(model: nn.Module, device: str) -> Canary:
    """Score the fixed ids, spread over the vocabulary, at temperature 1."""
    size = model.config.vocab_size
    ids = [(7 * place + 1) % size for place in range(CANARY_TOKENS)]
    with torch.no_grad():
        logits_TV = model(torch.tensor([ids], device=device)).logits[0, :-1].float()
    log_p_TV = logits_TV.log_softmax(dim=-1)
    lp_T = log_p_TV.gather(1, torch.tensor(ids[1:], device=device)[:, None])[:, 0]
    return Canary(pack_ids(ids), pack_logprobs(lp_T.tolist()))
