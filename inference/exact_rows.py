"""Rows of a batch whose logits equal the trainer's bit for bit, on a CPU with as many threads.

It replaces `rollcall.inference.key_values.BatchKv` and is slower, as it has no KV cache: each token
is computed from all tokens before it, one row at a time, in the shapes of
`rollcall.schemas.exact_widths`, as `rollcall.trainer.learner.forward` does where `[learner] exact`
is set. Only the tokens of a row are kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.exact_widths import FILL, width_of

TOKEN_BYTES = 8


class ExactRows:
    """The tokens of the running batch, with the methods of `BatchKv`."""

    def __init__(self, model: Any) -> None:
        if model.dtype != torch.float32 or model.device.type != "cpu":
            msg = (
                f"exact is for float32 on a CPU, and this policy is {model.dtype} on "
                f"{model.device.type}; take exact out of [learner]"
            )
            raise Refused(msg)
        self._model = model
        self._most = int(model.config.max_position_embeddings)
        self._rows: list[list[int]] = []

    def bytes_per_token(self) -> int:
        return TOKEN_BYTES

    def grow(self, rows: int, columns: int) -> None:
        """Make room for that many rows; columns need no room."""
        del columns
        self._rows += [[] for _ in range(rows - len(self._rows))]

    def load(self, row: int, kept: Tensor) -> None:
        self._rows[row] = kept[0].tolist()

    def save(self, row: int, length: int) -> Tensor:
        return torch.tensor([self._rows[row][:length]], dtype=torch.int64)

    def clear(self, row: int) -> None:
        self._rows[row] = []

    def move(self, source: int, target: int, length: int) -> None:
        self._rows[target] = self._rows[source][:length]

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.move(source, target, length)

    def forward(
        self, rows: Sequence[int], fed: Sequence[int], chunks: Sequence[Sequence[int]], *, keep: int
    ) -> Tensor:
        """Return logits [r, 1, V] after the last token of each row's chunk."""
        assert keep == 1, keep
        self.grow(max(rows) + 1, 0)
        logits = []
        for row, known, chunk in zip(rows, fed, chunks, strict=True):
            tokens = self._rows[row] = [*self._rows[row][:known], *chunk]
            width = width_of(len(tokens), self._most)
            ids_1W = torch.full((1, width), FILL)
            ids_1W[0, : len(tokens)] = torch.tensor(tokens)
            said = self._model(
                input_ids=ids_1W, position_ids=torch.arange(width)[None], use_cache=False
            ).logits
            logits.append(said[0, len(tokens) - 1])
        return torch.stack(logits)[:, None]
