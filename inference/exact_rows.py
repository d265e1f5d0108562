"""Feed the model the tokens that rows lack, a prompt shared by several rows only once.

`ExactRows` gives logits that equal the trainer's bit for bit, on a CPU with as many threads. It
replaces `rollcall.inference.key_values.BatchKv` and is slower, as it has no KV cache: each token is
computed from all tokens before it, one row at a time, in the shapes of
`rollcall.schemas.exact_widths`, as `rollcall.trainer.learner.forward` does where `[learner] exact`
is set. Only the tokens of a row are kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rollcall.inference.key_values import BatchKv
from rollcall.inference.slot import Slot
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


CHUNK = 512
"""The most tokens of a prompt per step, so that long prompts do not delay decoding rows."""


def read_once(
    kv: BatchKv | ExactRows, places: Sequence[int], rows: Sequence[Slot]
) -> tuple[Tensor, list[int], int]:
    """Feed each row the next chunk that it lacks; `places` are the rows' places in the batch.

    Returns logits after the chunks, [R, V], the tokens fed to each row, and the tokens that the
    model read. Of unfed rows with the same prompt (members of a group that wait together) only one
    is read, and the others get copies of its keys and values.
    """
    read, read_as = distinct(rows)
    chunks = [rows[at].tokens[rows[at].fed : rows[at].fed + CHUNK] for at in read]
    fed = [rows[at].fed for at in read]
    logits_RV = kv.forward([places[at] for at in read], fed, chunks, keep=1)[:, 0]
    tokens = sum(map(len, chunks))
    if len(read) == len(rows):
        return logits_RV, [len(chunk) for chunk in chunks], tokens
    copies = [at for at in range(len(rows)) if read[read_as[at]] != at]
    sources = [places[read[read_as[at]]] for at in copies]
    longest = max(len(chunks[read_as[at]]) for at in copies)
    kv.copy(sources, [places[at] for at in copies], longest)
    return logits_RV[read_as], [len(chunks[number]) for number in read_as], tokens


def distinct(rows: Sequence[Slot]) -> tuple[list[int], list[int]]:
    """Return the rows to read, and for each row the index of the read row that equals it."""
    read: list[int] = []
    read_as: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    for at, row in enumerate(rows):
        number = len(read)
        if not row.fed and len(row.tokens) <= CHUNK:
            number = known.setdefault(tuple(row.tokens), number)
        if number == len(read):
            read.append(at)
        read_as.append(number)
    return read, read_as
