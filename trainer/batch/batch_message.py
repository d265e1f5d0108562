"""Serialisation of a batch as named tensors, which rank 0 sends to the other ranks.

Arrays of rows are concatenated, and the length of each row is sent too. Fields are serialised by
their type, so new fields of a known type need no change here; other types are refused.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import orjson

from rollcall.schemas.errors import LengthsDisagree
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch, BatchRow

DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
    "F32": np.float32,
    "F64": np.float64,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
ROWS, SIZES, SEEN, NUMBERS = "rows", "sizes", "seen", "metrics"


def raw(array: np.ndarray[Any, Any]) -> RawTensor:
    """Return a copy of an array's bits. Raises KeyError for an unsupported dtype."""
    return RawTensor(NAMES[array.dtype], array.shape, np.ascontiguousarray(array).tobytes())


def array_of(tensor: RawTensor) -> np.ndarray[Any, Any]:
    """Return an array with its own memory."""
    return np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tensor.shape).copy()


def written(batch: Batch) -> dict[str, RawTensor]:
    """Serialise a batch. Raises TypeError for a field of an unsupported type."""
    sizes = [len(row.token_ids) for row in batch.rows]
    tensors = {SIZES: raw(np.array(sizes, np.int64))}
    for field in fields(Batch):
        value = getattr(batch, field.name)
        if field.name == NUMBERS:
            tensors |= {
                f"{NUMBERS}/{name}": raw(np.array(number)) for name, number in value.items()
            }
        elif field.name != ROWS:
            tensors[field.name] = raw(_text(value) if isinstance(value, tuple) else value)
    for field in fields(BatchRow):
        values = [getattr(row, field.name) for row in batch.rows]
        if field.name == SEEN:
            for name in values[0]:
                tensors[f"{ROWS}/{SEEN}/{name}"] = raw(
                    np.concatenate([each[name] for each in values])
                )
        elif not all(value is None for value in values):
            tensors[f"{ROWS}/{field.name}"] = raw(_column(field.name, values))
    return tensors


def read(tensors: Mapping[str, RawTensor]) -> Batch:
    """Read back the batch that was written. Raises LengthsDisagree."""
    sizes = array_of(tensors[SIZES])
    arrays = {each.name for each in fields(Batch)} - {ROWS, NUMBERS}
    own: dict[str, Any] = {name: array_of(tensors[name]) for name in arrays}
    for name, array in own.items():
        own[name] = tuple(orjson.loads(array.tobytes())) if array.dtype == np.uint8 else array
    own[NUMBERS] = {
        name.removeprefix(f"{NUMBERS}/"): array_of(tensor).item()
        for name, tensor in tensors.items()
        if name.startswith(f"{NUMBERS}/")
    }
    columns = {
        name.removeprefix(f"{ROWS}/"): _values(array_of(tensor), sizes, name)
        for name, tensor in tensors.items()
        if name.startswith(f"{ROWS}/")
    }
    seen = [name for name in columns if name.startswith(f"{SEEN}/")]
    plain = {name: values for name, values in columns.items() if name not in seen}
    rows = [
        BatchRow(
            **{name: values[b] for name, values in plain.items()},
            seen={name.removeprefix(f"{SEEN}/"): columns[name][b] for name in seen},
        )
        for b in range(len(sizes))
    ]
    return Batch(rows=tuple(rows), **own)


def _text(strings: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """Return strings as an array of bytes; its dtype U8 marks them as text."""
    return np.frombuffer(orjson.dumps(strings), np.uint8)


def _column(name: str, values: list[Any]) -> np.ndarray[Any, Any]:
    """Return one field of all rows: arrays concatenated, or numbers as [B, 1]."""
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    for kind, dtype in ((int, np.int64), (float, np.float64)):
        if all(isinstance(value, kind) for value in values):
            return np.array(values, dtype)[:, None]
    msg = f"{name} of a batch's row is a {type(values[0]).__name__}, which cannot be sent to a rank"
    raise TypeError(msg)


def _values(column: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], name: str) -> list[Any]:
    """Split a column into the values of each row; [B, 1] holds one number per row."""
    if column.ndim == 2:
        return [value.item() for value in column[:, 0]]
    if len(column) != sizes.sum():
        raise LengthsDisagree(name, tokens=int(sizes.sum()), found=len(column))
    return np.split(column, np.cumsum(sizes)[:-1])
