"""The KV cache: of the running batch, and of prefixes that may be used again.

The token at position p of a sequence lies in column p of its row, so rows of any lengths share one
forward pass and the mask is purely causal: a query at position p sees the columns up to p. Columns
beyond a row's end are never seen and are overwritten later. Padding queries write into the spare
last column.

Shapes: L2 keys and values of all layers (keys even), R rows, W columns, H heads, D head size,
r rows of one forward pass, Q new tokens of the longest of them.
"""

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from rollcall.schemas.errors import Refused


class BatchKv:
    """The keys and values of the running batch; rows and columns grow by doubling.

    With `most_bytes` they double only within that bound, and unused room in one direction is given
    up for the other.
    """

    def __init__(
        self, model: Any, rows: int = 8, columns: int = 64, most_bytes: int | None = None
    ) -> None:
        self._model = model
        self._cache = _cache_argument(model)
        layers, heads, size = _shape(model, self._cache)
        self._like = {"dtype": model.dtype, "device": model.device}
        self._tail = (heads, size)
        # Zeros: a masked score of 0 times uninitialised memory may be NaN.
        self._kv = torch.zeros(2 * layers, rows, columns + 1, heads, size, **self._like)
        self._most = None if most_bytes is None else most_bytes // self.bytes_per_token()

    def bytes_per_token(self) -> int:
        """Return the bytes of keys and values per token, all layers."""
        return int(self._kv[:, 0, 0].nbytes)

    def grow(self, rows: int, columns: int) -> None:
        """Make room for that many rows and columns; `rows` must count all rows in use."""
        _, have_rows, have_columns = self._kv.shape[:3]
        if rows <= have_rows and columns < have_columns:
            return
        new_rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        new_columns = have_columns if columns < have_columns else max(columns + 1, 2 * have_columns)
        if self._most is not None and rows * (columns + 1) <= self._most:
            new_rows = max(rows, min(new_rows, self._most // new_columns))
            new_columns = max(columns + 1, min(new_columns, self._most // new_rows))
        kv = torch.zeros(len(self._kv), new_rows, new_columns, *self._tail, **self._like)
        # The spare column's content has no meaning, so its old place need not be cleared.
        kept = (slice(None), slice(min(have_rows, new_rows)), slice(min(have_columns, new_columns)))
        kv[kept] = self._kv[kept]
        self._kv = kv

    def load(self, row: int, kept: Tensor) -> None:
        self._kv[:, row, : kept.shape[1]] = kept

    def save(self, row: int, length: int) -> Tensor:
        return self._kv[:, row, :length].clone()

    def clear(self, row: int) -> None:
        """Clear the contents of a row."""
        self._kv[:, row] = 0

    def move(self, source: int, target: int, length: int) -> None:
        self._kv[:, target, :length] = self._kv[:, source, :length]

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the keys and values of the first `length` tokens from source rows to target rows."""
        self.grow(max(*targets, len(self._kv[0]) - 1) + 1, length)
        self._kv[:, list(targets), :length] = self._kv[:, list(sources), :length]

    def forward(
        self, rows: Sequence[int], fed: Sequence[int], chunks: Sequence[Sequence[int]], *, keep: int
    ) -> Tensor:
        """Feed each row its next chunk; return logits [r, keep, V] after its last `keep` tokens.

        Chunks are padded on the left, with matching mask and positions: without these, logits
        would be wrong by nats, without any error.
        """
        lengths_r = np.fromiter(map(len, chunks), np.int64)
        longest, width = int(lengths_r.max()), int((lengths_r + fed).max())
        self.grow(max(*rows, len(self._kv[0]) - 1) + 1, width)
        ids_rQ = np.zeros((len(rows), longest), np.int64)
        for at, chunk in enumerate(chunks):
            ids_rQ[at, longest - len(chunk) :] = chunk
        position_rQ = np.arange(longest) + (np.asarray(fed) + lengths_r - longest)[:, None]
        real_rQ = np.arange(longest) >= (longest - lengths_r)[:, None]
        aim = self._aim(np.asarray(rows), np.where(real_rQ, position_rQ, -1), width)
        cache = Cache(layers=[_Layer(aim, layer) for layer in range(len(self._kv) // 2)])
        position_rQ = self._tensor(np.where(real_rQ, position_rQ, 0))
        unseen_r1QW = self._tensor(np.arange(width)) > position_rQ[:, None, :, None]
        mask_r1QW = torch.zeros(unseen_r1QW.shape, **self._like)
        mask_r1QW.masked_fill_(unseen_r1QW, torch.finfo(mask_r1QW.dtype).min)
        return self._model(
            input_ids=self._tensor(ids_rQ),
            position_ids=position_rQ,
            attention_mask=mask_r1QW,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache: cache},
        ).logits

    def _aim(self, rows: NDArray[np.int64], column_rQ: NDArray[np.int64], width: int) -> "_Aim":
        """Return the next pass's write slots (column -1 is the spare one) and read range."""
        columns = self._kv.shape[2]
        slots = self._tensor((rows[:, None] * columns + column_rQ % columns).ravel())
        # The first rows in order are a view; others must be gathered.
        in_order = np.array_equal(rows, np.arange(len(rows)))
        return _Aim(self._kv, slots, slice(len(rows)) if in_order else self._tensor(rows), width)

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._model.device)


@dataclass(frozen=True, slots=True)
class _Aim:
    """The slots into which one forward pass writes keys and values, and the range that it reads.

    It lives for one pass and its batch holds no reference to it, so a dropped batch frees its
    memory, and its model's, at once. A reference cycle would keep them until the garbage
    collector runs, which in a worker is rare.
    """

    kv: Tensor
    slots: Tensor
    rows: slice | Tensor
    width: int

    def write(self, index: int, new_rHQD: Tensor) -> Tensor:
        kv_RWHD = self.kv[index]
        tail = kv_RWHD.shape[2:]
        kv_RWHD.view(-1, *tail).index_copy_(
            0, self.slots, new_rHQD.transpose(1, 2).reshape(-1, *tail)
        )
        return kv_RWHD[:, : self.width][self.rows].transpose(1, 2)


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """A cache layer that passes a model layer's keys and values to the batch.

    Sizes come from the engine's mask.
    """

    def __init__(self, aim: _Aim, layer: int) -> None:
        super().__init__()
        self._aim, self._layer = aim, layer

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys = self._aim.write(2 * self._layer, key_states)
        return keys, self._aim.write(2 * self._layer + 1, value_states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        msg = "sizes come from the engine's own mask"
        raise NotImplementedError(msg)

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _cache_argument(model: Any) -> str:
    """Return the name of a model's cache argument; transformers 5.24 changed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _shape(model: Any, cache: str) -> tuple[int, int, int]:
    """Return layers, key heads and head size, measured by letting the model fill a cache."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        layers = getattr(model(input_ids=ids, use_cache=True), cache).layers
    shapes = (
        {
            tuple(x.shape)
            for layer in layers
            for x in (getattr(layer, "keys", None), layer.values)
            if x is not None
        }
        if all(hasattr(layer, "values") for layer in layers)
        else set()
    )
    if len(shapes) != 1:
        msg = (
            f"{type(model).__name__} keeps {sorted(shapes) or 'no keys and values'}; this engine "
            "serves models whose layers all keep keys and values of one shape"
        )
        raise Refused(msg)
    _, heads, _, size = shapes.pop()
    return len(layers), heads, size


class PrefixCache:
    """An LRU cache of prefixes' keys and values under one version, by packed tokens.

    The caller that changes the weights clears it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, prefix: bytes) -> Tensor | None:
        kept = self._kept.get(prefix)
        if kept is not None:
            self._kept.move_to_end(prefix)
        return kept

    def put(self, prefix: bytes, kv: Tensor, extends: Iterable[bytes] = ()) -> None:
        """Keep a prefix and drop the shorter ones in `extends`, which no call needs any more.

        Otherwise a session of n turns would be kept n times, and evict other sessions.
        """
        if prefix in self._kept or kv.nbytes > self._max_bytes:
            return
        for shorter in extends:
            if (dropped := self._kept.pop(shorter, None)) is not None:
                self._size_bytes -= dropped.nbytes
        self._kept[prefix] = kv
        self._size_bytes += kv.nbytes
        while self._size_bytes > self._max_bytes:
            self._size_bytes -= self._kept.popitem(last=False)[1].nbytes

    def demote(self, prefix: bytes) -> None:
        """Make a prefix the first to be evicted: a longer one is kept; only siblings need it."""
        if prefix in self._kept:
            self._kept.move_to_end(prefix, last=False)

    def clear(self) -> None:
        self._kept.clear()
        self._size_bytes = 0
