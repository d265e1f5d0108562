"""What rows of a batch lack is fed to the model: once where several begin with the same prompt."""

from collections.abc import Sequence

from torch import Tensor

from inference.exact_rows import ExactRows
from inference.key_values import BatchKv
from inference.slot import Slot

CHUNK = 512
"""A prompt is fed so many tokens a step, so that long ones do not hold up those who decode."""


def read_once(
    kv: BatchKv | ExactRows, places: Sequence[int], rows: Sequence[Slot]
) -> tuple[Tensor, list[int], int]:
    """Feed each row the next chunk of what it lacks; `places` are those of the rows in the batch.

    Returns logits after the chunks, [R, V], how many tokens each row was fed, and how many were
    read for that: of rows that have one prompt and nothing of it yet, as the members of a group
    that wait together, one is read, and the others are given its keys.
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
    """Which rows are to be read, and for each row which of those it is as."""
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
