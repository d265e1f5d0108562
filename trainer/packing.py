"""Rows that begin alike as one: what they share is computed once, their own parts side by side.

A pack is a tree of tokens laid out flat. Every token attends to its ancestors alone, at the
position that it has in its row, so it is told what it would be told in a row of its own; where two
rows part, one place is the last of both. What no sampled token follows is left out. In a pack that
shares nothing the rows stay rows.

Packs that share nothing may be laid end to end: the mask keeps them apart, and only the end of a
row is padded.

P packs, W tokens of the widest, M sampled tokens of a piece. Which rows share a pack depends on
the rows alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.integer]

MOST_WIDE = 4096
"""Tokens of a pack, at most: its mask is their square."""

SPENT_ON_MASKS = 4
"""A token of a filled pack meets others for at most a quarter of what it costs by itself."""


@dataclass(frozen=True, slots=True)
class Worth:
    """When it pays to share, for a model."""

    pairs: int
    """A token costs as much as so many pairs of a token and one that it may attend to."""
    longest: int
    """Rows with more tokens stay alone: the model has a mask of its own for them."""
    widest: int = MOST_WIDE
    """Tokens of a pack of several rows, at most."""


@dataclass(frozen=True, slots=True)
class PackRow:
    """A row as it is computed: its tokens but those that nothing sampled follows."""

    row: int
    ids: Ids
    before: Ids
    """Which of them a sampled token follows, ascending."""


@dataclass
class Pack:
    """Rows in order of their tokens; `paths` are the places of each row's tokens in the pack."""

    rows: list[PackRow] = field(default_factory=list)
    paths: list[Ids] = field(default_factory=list)
    width: int = 0

    def shared(self, row: PackRow) -> int:
        """How many first tokens the pack holds already. Rows come in order of their tokens."""
        if not self.rows:
            return 0
        last, now = self.rows[-1].ids, row.ids
        length = min(len(last), len(now))
        other = np.flatnonzero(last[:length] != now[:length])
        return int(other[0]) if len(other) else length

    def takes(self, row: PackRow, worth: Worth) -> bool:
        """Whether what is saved outweighs a wider mask: its pairs are the square of its width."""
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
        """Tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)

    def append(self, other: "Pack") -> None:
        """Take the rows of another in, after one's own; nothing of them is shared."""
        self.paths += [path + self.width for path in other.paths]
        self.rows += other.rows
        self.width += other.width


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What the model is given for a piece, and where its answers are looked up."""

    token_ids_PW: Tensor
    position_ids_PW: Tensor
    attention_mask: Tensor
    """[P, W] of rows that share nothing, [P, 1, W, W] of packs: to be added to the scores."""
    keep: int
    """So many last places of each pack need logits."""
    place_M: Tensor
    """Which of all kept places a token was sampled after, in log order of rows and tokens."""


def pack_row(row: int, token_ids: Ids, mask: NDArray[np.bool_]) -> PackRow:
    """Raises ValueError for a first token that was sampled: nothing says how likely it was."""
    sampled = np.flatnonzero(mask)
    if sampled[0] == 0:
        msg = f"row {row} begins with a sampled token"
        raise ValueError(msg)
    return PackRow(row, token_ids[: sampled[-1]], sampled - 1)


def packs_of(rows: Sequence[PackRow], worth: Worth) -> list[Pack]:
    """Every row in one pack."""
    packs = [Pack()]
    for row in sorted(rows, key=lambda row: (row.ids.astype(">i4").tobytes(), row.row)):
        if packs[-1].rows and not packs[-1].takes(row, worth):
            packs.append(Pack())
        packs[-1].add(row)
    return [pack for pack in packs if pack.rows]


def filled(packs: Sequence[Pack], worth: Worth, budget: int) -> list[Pack]:
    """Packs end to end, as wide as a mask of pairs is worth, so that little is padded.

    Each row still sees itself alone, from position 0 on. Every pack goes to the first that has
    room, the widest first; one with a row that has to stay alone does.
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
    """Packs of like width together, P·W within the budget (one may exceed it alone).

    Packs of one row come in pieces of their own: they need no mask of pairs.
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
    """The packs of a piece as tensors: the places whose logits are needed come last."""
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
    """The places that sampled tokens follow, each once."""
    places = [path[row.before] for row, path in zip(pack.rows, pack.paths, strict=True)]
    return np.unique(np.concatenate(places))


def _laid_out(pack: Pack, needed: Ids, width: int) -> Ids:
    """Where each place goes: padding, then what needs no logits, then the rest, in order."""
    other = np.setdiff1d(np.arange(pack.width), needed, assume_unique=True)
    at = np.empty(pack.width, np.int64)
    at[np.concatenate([other, needed])] = np.arange(width - pack.width, width)
    return at


def _added(ok: NDArray[np.bool_], device: str) -> Tensor:
    """The mask as what is added to scores; padding sees itself, since nothing must see nothing."""
    P, W, _ = ok.shape
    ok[:, np.arange(W), np.arange(W)] = True
    mask = torch.zeros((P, 1, W, W), device=device)  # filled there: a quarter of it travels
    mask.masked_fill_(torch.from_numpy(~ok[:, None]).to(device), torch.finfo(mask.dtype).min)
    return mask
