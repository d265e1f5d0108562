"""A cache of log-probabilities that a version gave to its own tokens, before the next update.

Trajectories are keyed by the id of their first request, so that rows of a rollout that was cut off
serve its continuation, which begins with the same tokens. If it does not, they are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch, BatchRow
from rollcall.trainer.weights.tensors import raw_of, tensor_of

PLACE = "noted"
"""The suffix of the names of its tensors among those of the optimiser."""

Row = tuple[str, int]
"""A trajectory's first id, and the number of a row among its rows with tokens of ours."""


@dataclass(frozen=True, slots=True)
class CachedRow:
    """The tokens of one row, [T] each; lp is nan where nothing is cached."""

    token_ids: NDArray[np.int32]
    versions: NDArray[np.int32]
    lp: NDArray[np.float32]

    def columns(self) -> NDArray[np.float64]:
        """Return ids, versions and log-probabilities, [T, 3]."""
        return np.stack([self.token_ids, self.versions, self.lp], axis=1, dtype=np.float64)

    def begins(self, row: BatchRow) -> bool:
        """Return True if a row begins with the same tokens of the same versions."""
        length = len(self.lp)
        return np.array_equal(row.token_ids[:length], self.token_ids) and np.array_equal(
            row.versions[:length], self.versions
        )


class LogprobCache:
    """The log-probabilities of all tokens that may still be trained on."""

    def __init__(self) -> None:
        self._rows: dict[Row, CachedRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, batch: Batch, version: int, oldest: int) -> None:
        """Keep `prox` of this version's tokens; forget tokens of versions below `oldest`."""
        rows = dict(self._rows)
        for at, row in rows_of(batch):
            lp = self._known(at, row)
            fresh = row.mask & (row.versions == version)
            lp[fresh] = row.seen["prox"][fresh]
            rows[at] = CachedRow(row.token_ids, row.versions, lp)
        # A row without cached tokens gets `oldest - 1`, and is dropped too.
        self._rows = {
            at: cached
            for at, cached in rows.items()
            if min(cached.versions[~np.isnan(cached.lp)], default=oldest - 1) >= oldest
        }

    def added_to(self, batch: Batch) -> Batch:
        """Return the batch with the cached values as `noted`; nan where there is none."""
        rows = [
            replace(row, seen={**row.seen, PLACE: self._known(at, row)})
            for at, row in rows_of(batch)
        ]
        return replace(batch, rows=tuple(rows))

    def state(self) -> dict[str, RawTensor]:
        """Return the state for a checkpoint: `columns` of each row, in float64."""
        return {
            f"{name}/{number}/{PLACE}": raw_of(torch.from_numpy(cached.columns()))
            for (name, number), cached in self._rows.items()
        }

    def load(self, state: Mapping[str, RawTensor]) -> None:
        """Restore from a checkpoint's state."""
        self._rows = {}
        for key, raw in state.items():
            rest, _, place = key.rpartition("/")
            name, _, number = rest.rpartition("/")
            if place == PLACE:
                ids, versions, lp = tensor_of(raw).numpy().T
                self._rows[name, int(number)] = CachedRow(
                    ids.astype(np.int32), versions.astype(np.int32), lp.astype(np.float32)
                )

    def _known(self, at: Row, row: BatchRow) -> NDArray[np.float32]:
        lp = np.full(len(row.token_ids), np.nan, np.float32)
        cached = self._rows.get(at)
        if cached is not None and cached.begins(row):
            lp[: len(cached.lp)] = cached.lp
        return lp


def rows_of(batch: Batch) -> list[tuple[Row, BatchRow]]:
    """Return every row of a batch with its key."""
    found: list[tuple[Row, BatchRow]] = []
    numbers: dict[int, int] = {}
    for row in batch.rows:
        number = numbers.get(row.trajectory, 0)
        numbers[row.trajectory] = number + 1
        found.append(((batch.names[row.trajectory], number), row))
    return found
