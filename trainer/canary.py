"""A fixed prompt that trainer and servers score alike: a server of other weights is seen by it."""

from dataclasses import dataclass

import torch
from torch import nn

from schemas.packed import pack_ids, pack_logprobs

CANARY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Canary:
    """A fixed prompt and what the learner thinks of it, packed as in PolicyVersion."""

    ids: bytes
    logprobs: bytes
    """Of ids[1:], float32."""


def canary_of(model: nn.Module, device: str) -> Canary:
    """The same ids for ever, spread over the vocabulary, scored at temperature 1."""
    size = model.config.vocab_size
    ids = [(7 * place + 1) % size for place in range(CANARY_TOKENS)]
    with torch.no_grad():
        logits_TV = model(torch.tensor([ids], device=device)).logits[0, :-1].float()
    log_p_TV = logits_TV.log_softmax(dim=-1)
    lp_T = log_p_TV.gather(1, torch.tensor(ids[1:], device=device)[:, None])[:, 0]
    return Canary(pack_ids(ids), pack_logprobs(lp_T.tolist()))
