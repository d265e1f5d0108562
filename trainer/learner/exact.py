"""Logits equal to the engine's bit for bit: the same kernels on the same shapes.

A token is computed in a pass over its own row alone, of the width that its position determines
(`rollcall.schemas.exact_widths`), with float32 weights, on a CPU with as many threads as the engine
has. So for equal versions there is no mismatch to correct. A row costs one pass per width that
contains sampled tokens.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

from rollcall.schemas.errors import Refused
from rollcall.schemas.exact_widths import FILL, width_of
from rollcall.trainer.batch.pieces import MicroBatch


def exact_logits(model: nn.Module, micro: MicroBatch) -> Tensor:
    """Return the logits before each sampled token, [M, V], in the order of the mask's positions."""
    most = most_positions(model)
    places: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for number, (row, at) in enumerate(micro.mask_BT.nonzero().tolist()):
        places[row, width_of(at, most)].append((number, at - 1))
    found: list[Tensor] = []
    order: list[int] = []
    for (row, width), tokens in places.items():
        logits_WV = _row_logits(model, micro.token_ids_BT[row], width)
        found.append(logits_WV[[at for _, at in tokens]])
        order += [number for number, _ in tokens]
    if not found:
        return torch.zeros(0, model.get_output_embeddings().weight.shape[0])
    # Passes are grouped by row and width; argsort restores the order of the mask.
    return torch.cat(found)[torch.tensor(order).argsort()]


def _row_logits(model: nn.Module, tokens_T: Tensor, width: int) -> Tensor:
    ids_1W = torch.full((1, width), FILL)
    count = min(width, len(tokens_T))
    ids_1W[0, :count] = tokens_T[:count]
    logits: Tensor = model(
        input_ids=ids_1W, position_ids=torch.arange(width)[None], use_cache=False
    ).logits
    return logits[0]


def most_positions(model: nn.Module) -> int:
    """Return the length of the longest sequence that a model can read."""
    return int(model.config.max_position_embeddings)


def require_exact(model: nn.Module, device: str) -> None:
    """Raise Refused if device or attention make equal bits impossible."""
    if device != "cpu":
        msg = f"exact is for a CPU, and training.device is {device!r}; take exact out"
        raise Refused(msg)
    if model.config._attn_implementation != "sdpa":
        msg = f"exact: {type(model).__name__} has no attention of the engine's kind (sdpa)"
        raise Refused(msg)
