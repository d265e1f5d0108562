"""A test of a model: can it process packed rows with a shared prefix.

The library's description of an architecture is not sufficient: some ignore a mask of four
dimensions, some count positions themselves, some keep a state. So two short rows are computed
separately, packed (with text after a sampled token placed before it in the pack, as in any row of
two turns), and packed under a mask that lets one row attend to the other; the first two results
must agree, the last must differ.

Some layers attend to a window, a chunk or the top few of the tokens before. Only the configuration
gives their number: longer rows are not packed. Some layers count positions of the pack in spite of
the mask. So a pack that is wider than such a bound is tried too; if it fails, packs stay below the
bound.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from rollcall.schemas.context_length import positions_used
from rollcall.trainer.batch.packing import (
    MOST_WIDE,
    ModelInput,
    PackRow,
    Worth,
    model_input,
    packs_of,
)
from rollcall.trainer.learner.forward import kept_logits

log = structlog.get_logger()

ALIKE = 1e-4
"""The tolerance for logits computed in another order, relative to the largest."""
EVERYTHING = Worth(pairs=2**40, longest=2**40, widest=2**40)
BOUNDS = re.compile(
    r"(window|chunk|block)_(size|len|length)$"
    r"|^(local_attention|index_topk|floor_scale|original_max_position_embeddings)$"
)
"""Configuration fields with a number of tokens beyond which a layer computes differently."""


def sharing_with(model: nn.Module) -> Worth | None:
    """Return when sharing pays; None, with a log warning, if the model does not support it."""
    found = sharing_of(model)
    if isinstance(found, Worth):
        return found
    log.warning("rows_padded", model=type(model).__name__, reason=found)
    return None


def sharing_of(model: nn.Module) -> Worth | str:
    """Return when sharing pays for this model; or the reason why it is not supported."""
    reason = _tried(model)
    if reason:
        return reason
    longest = longest_alike(model.config)
    wide = longest >= MOST_WIDE or not _tried(model, beside=longest)
    return Worth(6 * int(model.config.hidden_size), longest, MOST_WIDE if wide else longest - 1)


def _tried(model: Any, beside: int = 0) -> str:
    """Return why two packed rows differ from the rows alone; empty if they do not.

    A third row of `beside` tokens lies between the shared and the own ones, to widen the pack.
    """
    try:
        with torch.no_grad():
            return _told_apart(model, beside)
    except Exception as error:  # a model that does not support packing may raise anything
        return f"it raises {type(error).__name__}"


def _told_apart(model: Any, beside: int) -> str:
    size = int(model.config.vocab_size)
    first = [(7 * place + 1) % size for place in range(6)]
    second = [*first[:3], *((token + size // 2) % size for token in first[3:])]
    rows = [
        PackRow(number, np.array(ids), np.array([1, 4, 5]))
        for number, ids in enumerate((first, second))
    ]
    apart = torch.cat([_scores(model, model_input(packs_of([row], EVERYTHING))) for row in rows])
    [pack] = packs_of(rows, EVERYTHING)
    if beside:
        other = PackRow(2, np.arange(beside) % size, np.arange(0))
        pack.append(*packs_of([other], EVERYTHING))
    given = model_input([pack])
    together = _scores(model, given)
    blind = _scores(model, _seeing_all(given))
    scale = float(apart.abs().max())
    if float((together - apart).abs().max()) > ALIKE * scale:
        return "it gives two rows under one mask other logits than each alone"
    if float((blind - apart).abs().max()) <= 10 * float((together - apart).abs().max()):
        return "it does not look at a mask of its own tokens"
    return ""


def _scores(model: Any, given: ModelInput) -> Tensor:
    device = model.device
    moved = replace(
        given,
        token_ids_PW=given.token_ids_PW.to(device),
        position_ids_PW=given.position_ids_PW.to(device),
        attention_mask=given.attention_mask.to(device),
        place_M=given.place_M.to(device),
    )
    return kept_logits(model, moved).flatten(0, 1)[moved.place_M]


def _seeing_all(given: ModelInput) -> ModelInput:
    """Return the same input with a plain causal mask: every token attends to all before."""
    width = given.token_ids_PW.shape[1]
    causal = torch.full((width, width), torch.finfo(torch.float32).min).triu(1)
    return replace(given, attention_mask=causal[None, None])


def longest_alike(config: Any) -> int:
    """Return the row length up to which every layer attends to all that the mask allows."""
    fields = config.to_dict().items()
    bounds = [value for name, value in fields if BOUNDS.search(name) and isinstance(value, int)]
    return min(
        [positions_used(config) or EVERYTHING.longest, *(bound for bound in bounds if bound > 0)]
    )
