"""Proof that a model holds the loaded tensors, in whatever layout.

An engine's own model fuses tensors (query, key and value; gate and up), pads and transposes them,
and its loader may silently skip one: then a part of a fused tensor is from the earlier version. So
the copies of a load are traced, which shows where each element of each tensor went. The values
there are then put back into the tensor's own shape, and its digest is computed. Tensors that no
copy reached are reported by name.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

COPY = torch.ops.aten.copy_.default
CONSTANTS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default)
"""Operations with which a loader pads."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The tensors that a model holds after a load."""

    digests: Mapping[str, tuple[str, str]]
    """By name of a loaded tensor: the dtype in which it is held, and the digest."""
    stale: tuple[str, ...]
    """The model's own tensors that were not written completely."""


def digest_of(tensor: Tensor) -> str:
    """Return a digest of a tensor's shape, dtype and bits."""
    named = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    named.update(_bits(tensor).cpu().numpy())
    return named.hexdigest()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def load_and_prove(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    load: Callable[[Iterable[tuple[str, Tensor]]], object],
) -> Loaded:
    """Load the tensors by `load` and return what the model holds of them."""
    watched = _Watched(tensors)
    with watched:
        load(tensors.items())
    return Loaded(watched.digests(), watched.stale(model))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Some elements of a loaded tensor, and the place that they were copied to."""

    source: Tensor
    """A view of the loaded tensor."""
    target: Tensor

    def place_in(self, whole: Tensor) -> tuple[Sequence[int], Sequence[int], int]:
        """Return shape, strides and offset of the source within its whole tensor."""
        offset = (self.source.data_ptr() - whole.data_ptr()) // whole.itemsize
        return self.source.shape, self.source.stride(), offset


class _Watched(TorchDispatchMode):  # type: ignore[misc]  # it has no types
    """A dispatch mode that records every copy from the tensors and every constant written."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._copies: dict[str, list[_Copy]] = {}
        self._written: list[Tensor] = []
        self._sorted = sorted((held.data_ptr(), name) for name, held in tensors.items())
        self._begins = [begin for begin, _ in self._sorted]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        done = func(*args, **(kwargs or {}))
        if func is COPY:
            self._saw(args[0], args[1])
        elif func in CONSTANTS:
            self._written.append(args[0].detach())
        return done

    def _saw(self, target: Tensor, source: Tensor) -> None:
        """Record a copy; one from any other tensor proves nothing and is ignored."""
        at = bisect_right(self._begins, source.data_ptr()) - 1
        if at < 0 or source.shape != target.shape:
            return
        begin, name = self._sorted[at]
        whole = self._tensors[name]
        if source.dtype == whole.dtype and source.data_ptr() < begin + whole.nbytes:
            self._copies.setdefault(name, []).append(_Copy(source.detach(), target.detach()))
            self._written.append(target.detach())

    def digests(self) -> dict[str, tuple[str, str]]:
        """Return dtype and digest of each tensor that can be reassembled from its copies."""
        found = {}
        for name, copies in self._copies.items():
            held = _put_together(self._tensors[name], copies)
            if held is not None:
                found[name] = (str(held.dtype).removeprefix("torch."), digest_of(held))
        return found

    def stale(self, model: nn.Module) -> tuple[str, ...]:
        """Return the parameters that hold anything from before the load."""
        written = sorted(self._written, key=lambda each: each.data_ptr())
        begins = [each.data_ptr() for each in written]
        return tuple(
            name
            for name, held in model.named_parameters()
            if held.numel() and not _covered(held, written, begins)
        )


def _put_together(whole: Tensor, copies: list[_Copy]) -> Tensor | None:
    """Reassemble a tensor in its own shape; None if a part was copied nowhere, or twice with
    different values."""
    held = torch.empty(whole.shape, dtype=copies[0].target.dtype)
    reached = torch.zeros(whole.shape, dtype=torch.bool)
    for copy in copies:
        place = copy.place_in(whole)
        held.as_strided(*place).copy_(copy.target)
        reached.as_strided(*place).fill_(True)
    alike = (
        torch.equal(_bits(held.as_strided(*copy.place_in(whole))), _bits(copy.target))
        for copy in copies
    )
    return held if reached.all() and all(alike) else None


def _covered(held: Tensor, written: list[Tensor], begins: list[int]) -> bool:
    """Return True if the writes cover every element of a tensor."""
    marks = torch.zeros(_span(held), dtype=torch.bool)
    first, end = held.data_ptr(), held.data_ptr() + _span(held) * held.itemsize
    for at in range(bisect_right(begins, first - 1), bisect_right(begins, end - 1)):
        part, offset = written[at], (begins[at] - first) // held.itemsize
        if part.itemsize == held.itemsize and offset + _span(part) <= len(marks):
            marks.as_strided(part.shape, part.stride(), offset).fill_(True)
    return bool(marks.as_strided(held.shape, held.stride()).all())


def _span(tensor: Tensor) -> int:
    """Return the number of elements in memory from its first to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(step) for size, step in steps)
