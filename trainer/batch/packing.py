"""Packing of rows with a shared prefix, so that the prefix is computed once.

A pack is a tree of tokens stored flat. Every token attends to its ancestors only, with the position
that it has in its row, so it gets the same result as in a row of its own; where two rows diverge,
the last shared token serves both. Tokens that no sampled token follows are left out. If nothing is
shared in a piece, rows stay plain rows.

Packs that share nothing may be concatenated: the mask separates them, and only the end of the
result is padded.

P packs, W tokens of the widest, M sampled tokens of a piece. The assignment of rows to packs is a
function of the rows alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.integer]

MOST_WIDE = 4096
"""The most tokens of a pack: its mask has their square."""

SPENT_ON_MASKS = 4
"""A bound for filled packs: attention costs a token at most a quarter of its other cost."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The cost model that decides if sharing a prefix pays, for one model."""

    pairs: int
    """The cost of a token, as a number of (token, attended token) pairs."""
    longest: int
    """Rows with more tokens are not packed: some layers restrict attention beyond this length."""
    widest: int = MOST_WIDE
    """The most tokens of a pack of several rows."""


@dataclass(frozen=True, slots=True)
class PackRow:
    """A row to compute: its tokens up to the one before the last sampled token."""

    row: int
    ids: Ids
    before: Ids
    """Indices of tokens that a sampled token follows, ascending."""


@dataclass
class Pack:
    """Rows sorted by their tokens; `paths` are the indices of each row's tokens in the pack."""

    rows: list[PackRow] = field(default_factory=list)
    paths: list[Ids] = field(default_factory=list)
    width: int = 0

    def shared(self, row: PackRow) -> int:
        """Return the length of the prefix shared with the last row; rows come sorted."""
        if not self.rows:
            return 0
        last, now = self.rows[-1].ids, row.ids
        length = min(len(last), len(now))
        other = np.flatnonzero(last[:length] != now[:length])
        return int(other[0]) if len(other) else length

    def takes(self, row: PackRow, worth: Worth) -> bool:
        """Return True if the saved tokens outweigh the wider mask (the square of its width)."""
        shared = self.shared(row)
        width = self.width + len(row.ids) - shared
        wider = width**2 - self.width**2 - len(row.ids) ** 2
        longest = max(len(row.ids), len(self.rows[-1].ids) if self.rows else 0)
        fits = width <= worth.widest and longest <= worth.longest
        return fits and shared * worth.pairs > wider

    def add(self, row: PackRow) -> None:
        shared = self.shared(row)
        width = self.width + len(row.ids) - shared
        known = self.paths[-1][:shared] if shared else np.zeros(0, np.int64)
        self.paths.append(np.concatenate([known, np.arange(self.width, width)]))
        self.rows.append(row)
        self.width = width

    def longest(self) -> int:
        """Return the number of tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)

    def append(self, other: "Pack") -> None:
        """Append the rows of another pack, without sharing."""
        self.paths += [path + self.width for path in other.paths]
        self.rows += other.rows
        self.width += other.width


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The model's input for a piece, and the indices of its outputs."""

    token_ids_PW: Tensor
    position_ids_PW: Tensor
    attention_mask: Tensor
    """[P, W] for rows without sharing; [P, 1, W, W] for packs, to be added to the scores."""
    keep: int
    """The number of last positions of each pack that need logits."""
    place_M: Tensor
    """Per sampled token, the kept position before it, in log order of rows and tokens."""


def pack_row(row: int, token_ids: Ids, mask: NDArray[np.bool_]) -> PackRow:
    """Build a PackRow. Raises ValueError if the first token was sampled: it has no logits."""
    sampled = np.flatnonzero(mask)
    if sampled[0] == 0:
        msg = f"row {row} begins with a sampled token"
        raise ValueError(msg)
    return PackRow(row, token_ids[: sampled[-1]], sampled - 1)


def packs_of(rows: Sequence[PackRow], worth: Worth) -> list[Pack]:
    """Assign every row to one pack."""
    packs = [Pack()]
    # Big-endian bytes sort like token ids, so rows with a common prefix become neighbours.
    for row in sorted(rows, key=lambda row: (row.ids.astype(">i4").tobytes(), row.row)):
        if packs[-1].rows and not packs[-1].takes(row, worth):
            packs.append(Pack())
        packs[-1].add(row)
    return [pack for pack in packs if pack.rows]


def filled(packs: Sequence[Pack], worth: Worth, budget: int) -> list[Pack]:
    """Concatenate packs, as wide as the cost of a mask allows, to reduce padding.

    Each row still attends to itself alone, from position 0 on. First fit, the widest pack first; a
    pack with a row longer than `worth.longest` stays alone.
    """
    room = min(worth.widest, budget, worth.pairs // SPENT_ON_MASKS)
    made: list[Pack] = []
    order = sorted(packs, key=lambda pack: (-pack.width, pack.rows[0].row))
    for pack in order:
        fits = (each for each in made if each.width + pack.width <= room)
        first = (each for each in fits if max(pack.longest(), each.longest()) <= worth.longest)
        last = next(first, None)
        if last is None:
            made.append(pack)
        else:
            last.append(pack)
    return made


def pieces_of(packs: Sequence[Pack], budget: int) -> Iterator[list[Pack]]:
    """Yield packs of similar width together, P·W within the budget (one pack may exceed it).

    Packs of one row are in separate pieces: they need no mask of pairs.
    """
    alone = [pack for pack in packs if len(pack.rows) == 1]
    for kind in (alone, [pack for pack in packs if len(pack.rows) > 1]):
        taken: list[Pack] = []
        for pack in sorted(kind, key=lambda pack: pack.width):
            if taken and (len(taken) + 1) * pack.width > budget:
                yield taken
                taken = []
            taken.append(pack)
        if taken:
            yield taken


def model_input(packs: Sequence[Pack], device: str = "cpu") -> ModelInput:
    """Return the packs of a piece as tensors, with the positions that need logits last."""
    shares = any(len(pack.rows) > 1 for pack in packs)
    kept = [_needed(pack) for pack in packs]
    width = max(pack.width for pack in packs)
    keep = max(len(needed) for needed in kept) if shares else width - min(int(n[0]) for n in kept)
    ids, positions = np.zeros((2, len(packs), width), np.int64)
    ok = np.zeros((len(packs), width, width) if shares else (len(packs), width), bool)
    places: dict[int, Ids] = {}
    for p, pack in enumerate(packs):
        at = _laid_out(pack, kept[p], width) if shares else np.arange(pack.width)
        for row, path in zip(pack.rows, pack.paths, strict=True):
            cells = at[path]
            ids[p, cells], positions[p, cells] = row.ids, np.arange(len(cells))
            if shares:
                ok[p, cells[:, None], cells] |= np.tri(len(cells), dtype=bool)
            else:
                ok[p, cells] = True
            places[row.row] = p * keep + cells[row.before] - (width - keep)
    return ModelInput(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(positions).to(device),
        _added(ok, device) if shares else torch.from_numpy(ok).to(device, torch.int64),
        keep,
        torch.from_numpy(np.concatenate([places[row] for row in sorted(places)])).to(device),
    )


def _needed(pack: Pack) -> Ids:
    """Return the positions that sampled tokens follow, each once."""
    places = [path[row.before] for row, path in zip(pack.rows, pack.paths, strict=True)]
    return np.unique(np.concatenate(places))


def _laid_out(pack: Pack, needed: Ids, width: int) -> Ids:
    """Return new positions: padding, then those without logits, then the others, in order."""
    other = np.setdiff1d(np.arange(pack.width), needed, assume_unique=True)
    at = np.empty(pack.width, np.int64)
    at[np.concatenate([other, needed])] = np.arange(width - pack.width, width)
    return at


def _added(ok: NDArray[np.bool_], device: str) -> Tensor:
    """Return the additive mask. Padding attends to itself: a softmax over nothing is nan."""
    P, W, _ = ok.shape
    ok[:, np.arange(W), np.arange(W)] = True
    mask = torch.zeros((P, 1, W, W), device=device)  # filled there: moves fewer bytes
    mask.masked_fill_(torch.from_numpy(~ok[:, None]).to(device), torch.finfo(mask.dtype).min)
    return mask
