"""Feed the model the tokens that rows lack, a prompt shared by several rows only once."""

from collections.abc import Sequence

from torch import Tensor

from rollcall.inference.exact_rows import ExactRows
from rollcall.inference.key_values import BatchKv
from rollcall.inference.slot import Slot

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
