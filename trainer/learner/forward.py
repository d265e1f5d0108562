"""The forward pass over a piece of a batch.

Dropout is off: the model stays in evaluation mode, so that lp is the log-probability of the
sampled policy. B sequences, T tokens, V words, M sampled tokens of the piece.
"""

from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import describe_exception
from rollcall.trainer.batch.packing import ModelInput
from rollcall.trainer.batch.pieces import MicroBatch
from rollcall.trainer.learner.arithmetic import computing
from rollcall.trainer.learner.exact import exact_logits
from rollcall.trainer.rules.tokens import entropy


@dataclass(frozen=True, slots=True)
class Forward:
    """Log-probabilities and entropies; `b_M`, `t_M` are the indices of the sampled tokens."""

    lp_BT: Tensor
    entropy_BT: Tensor
    b_M: Tensor
    t_M: Tensor
    uniform_M: Tensor | None = None
    """KL(uniform ‖ policy) at sampled tokens; None if it was not requested."""


def forward(
    model: nn.Module, micro: MicroBatch, temperature: float, tokens: tuple[int, ...] | None = None
) -> Forward:
    """lp[b,t] = log softmax(logits[b,t−1] / temperature)[token[b,t]], 0 where mask is 0.

    `tokens` requests KL(uniform ‖ policy) over these token ids, or over all if it is empty.
    """
    if micro.shared is not None:
        return _forward_shared(model, micro, micro.shared, temperature, tokens)
    b_M, t_M = micro.mask_BT.nonzero(as_tuple=True)
    logits_MV = exact_logits(model, micro) if micro.exact else _logits(model, micro)[b_M, t_M - 1]
    log_p_MV = (logits_MV.float() / temperature).log_softmax(dim=-1)
    lp_M = log_p_MV.gather(1, micro.token_ids_BT[b_M, t_M][:, None])[:, 0]
    uniform_M = None if tokens is None else uniform_kl_of(log_p_MV, tokens, 1.0)
    return replace(_placed(micro, lp_M, entropy(log_p_MV), (b_M, t_M)), uniform_M=uniform_M)


def _logits(model: nn.Module, micro: MicroBatch) -> Tensor:
    """Return the logits of all positions, [B, T, V]."""
    with computing(micro.precision, micro.token_ids_BT.device):
        logits: Tensor = model(
            input_ids=micro.token_ids_BT,
            attention_mask=micro.attention_mask_BT,
            position_ids=micro.position_ids_BT,
            use_cache=False,
        ).logits
    return logits


def _forward_shared(
    model: nn.Module,
    micro: MicroBatch,
    given: ModelInput,
    temperature: float,
    tokens: tuple[int, ...] | None,
) -> Forward:
    """Compute the same with shared prefixes once, and logits only where they are needed."""
    b_M, t_M = micro.mask_BT.nonzero(as_tuple=True)
    with computing(micro.precision, micro.token_ids_BT.device):
        logits_UV = kept_logits(model, given).flatten(0, 1)
    tokens_M = micro.token_ids_BT[b_M, t_M]
    lp_M, entropy_M = token_scores(logits_UV, given.place_M, tokens_M, temperature)
    scores = _placed(micro, lp_M, entropy_M, (b_M, t_M))
    if tokens is None:
        return scores
    return replace(scores, uniform_M=uniform_kl_of(logits_UV, tokens, temperature)[given.place_M])


def kept_logits(model: nn.Module, given: ModelInput) -> Tensor:
    """Return the logits of the last `keep` positions of each pack, [P, keep, V]."""
    mask = given.attention_mask
    logits: Tensor = model(
        input_ids=given.token_ids_PW,
        attention_mask=mask.to(model.dtype) if mask.is_floating_point() else mask,
        position_ids=given.position_ids_PW,
        use_cache=False,
        logits_to_keep=given.keep,
    ).logits
    return logits


def _placed(
    micro: MicroBatch, lp_M: Tensor, entropy_M: Tensor, places: tuple[Tensor, Tensor]
) -> Forward:
    empty_BT = torch.zeros_like(micro.behaviour_logprobs_BT)
    return Forward(
        empty_BT.index_put(places, lp_M.to(empty_BT.dtype)),
        empty_BT.index_put(places, entropy_M.to(empty_BT.dtype)),
        *places,
    )


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


def loaded(model_directory: str) -> nn.Module:
    """Load the causal language model of a local directory, in float32. Raises Refused."""
    wrong, remedy = f"no causal language model at {model_directory!r}", "give a local directory"
    if not (Path(model_directory) / "config.json").is_file():  # transformers would ask a hub
        msg = f"{wrong}: no config.json is there; {remedy}"
        raise Refused(msg)
    try:
        return AutoModelForCausalLM.from_pretrained(
            model_directory, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        msg = f"{wrong}: {describe_exception(error).partition(chr(10))[0]}; {remedy}"
        raise Refused(msg) from error


ROWS = 64
"""The number of positions computed at a time, to bound temporary memory."""


def token_scores(
    logits_UV: Tensor, place_M: Tensor, token_M: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return lp [M] of tokens after positions, and the entropy [M] there: nats, at T."""
    if logits_UV.dtype in (torch.float16, torch.bfloat16):
        logits_UV = logits_UV.float()
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(logits_UV, place_M, token_M, temperature)
    return scores


class _TokenScores(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """d lp / d z = onehot − p and d H / d z = −p (log p + H), where z = logits / T."""

    @staticmethod
    def forward(
        ctx: Any, logits_UV: Tensor, place_M: Tensor, token_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        parts = [_normaliser_and_entropy(part / temperature) for part in logits_UV.split(ROWS)]
        lse_U, entropy_U = (torch.cat(values) for values in zip(*parts, strict=True))
        lp_M = logits_UV[place_M, token_M] / temperature - lse_U[place_M]
        ctx.save_for_backward(logits_UV, place_M, token_M, lse_U, entropy_U)
        ctx.temperature = temperature
        return lp_M, entropy_U[place_M]

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_lp_M: Tensor, by_entropy_M: Tensor) -> tuple[Tensor | None, ...]:
        logits_UV, place_M, token_M, lse_U, entropy_U = ctx.saved_tensors
        by_lp_U = torch.zeros_like(lse_U).index_add(0, place_M, by_lp_M)
        by_entropy_U = torch.zeros_like(lse_U).index_add(0, place_M, by_entropy_M)
        found_UV = torch.empty_like(logits_UV)
        for first in range(0, len(found_UV), ROWS):
            part = slice(first, first + ROWS)
            log_p = (logits_UV[part] / ctx.temperature).sub_(lse_U[part, None])
            p = log_p.exp()
            log_p.clamp_(min=-1e30).add_(entropy_U[part, None]).mul_(by_entropy_U[part, None])
            found_UV[part] = log_p.add_(by_lp_U[part, None]).mul_(p).neg_()
        found_UV.index_put_((place_M, token_M), by_lp_M, accumulate=True)
        return found_UV.div_(ctx.temperature), None, None, None


def _normaliser_and_entropy(z_UV: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ exp z and H = lse − Σ p z, [U]; a logit of −inf adds 0."""
    lse_U = z_UV.logsumexp(dim=-1)
    p_UV = (z_UV - lse_U[:, None]).exp_()
    return lse_U, lse_U - p_UV.mul_(z_UV.clamp(min=-1e30)).sum(dim=-1)
