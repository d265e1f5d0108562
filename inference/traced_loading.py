"""Proof that a model holds the tensors that were loaded, however it lays them out.

An engine's own model fuses tensors (query, key and value; gate and up), pads and turns them, and
its loader may pass over one in silence: then a part of a fused tensor is that of the version
before. So the copies of a load are watched. They tell where each element of each tensor went; what
lies there afterwards is put back into the tensor's own shape, and its digest is taken. What no
copy reached is told by its name.
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
"""How a loader pads."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a model holds after a load."""

    digests: Mapping[str, tuple[str, str]]
    """By the name of a tensor that was loaded: the dtype in which it is held, and the digest."""
    stale: tuple[str, ...]
    """The model's own tensors of which a part was not written."""


def digest_of(tensor: Tensor) -> str:
    """Name a tensor's shape, dtype and bits."""
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
    """Load the tensors by `load` and say what the model holds of them then."""
    watched = _Watched(tensors)
    with watched:
        load(tensors.items())
    return Loaded(watched.digests(), watched.stale(model))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Some elements of a loaded tensor, and where they went."""

    source: Tensor
    """A view of the loaded tensor."""
    target: Tensor

    def place_in(self, whole: Tensor) -> tuple[Sequence[int], Sequence[int], int]:
        """Shape, strides and offset of the source within the tensor that it is a part of."""
        offset = (self.source.data_ptr() - whole.data_ptr()) // whole.itemsize
        return self.source.shape, self.source.stride(), offset


class _Watched(TorchDispatchMode):  # type: ignore[misc]  # it has no types
    """Every copy from the tensors, and every constant, that is written within."""

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
        """A copy from anywhere else proves nothing, so it counts as none."""
        at = bisect_right(self._begins, source.data_ptr()) - 1
        if at < 0 or source.shape != target.shape:
            return
        begin, name = self._sorted[at]
        whole = self._tensors[name]
        if source.dtype == whole.dtype and source.data_ptr() < begin + whole.nbytes:
            self._copies.setdefault(name, []).append(_Copy(source.detach(), target.detach()))
            self._written.append(target.detach())

    def digests(self) -> dict[str, tuple[str, str]]:
        """Of each tensor that can be put together from what lies where it was copied to."""
        found = {}
        for name, copies in self._copies.items():
            held = _put_together(self._tensors[name], copies)
            if held is not None:
                found[name] = (str(held.dtype).removeprefix("torch."), digest_of(held))
        return found

    def stale(self, model: nn.Module) -> tuple[str, ...]:
        """The parameters that hold anything from before."""
        written = sorted(self._written, key=lambda each: each.data_ptr())
        begins = [each.data_ptr() for each in written]
        return tuple(
            name
            for name, held in model.named_parameters()
            if held.numel() and not _covered(held, written, begins)
        )


def _put_together(whole: Tensor, copies: list[_Copy]) -> Tensor | None:
    """What is held of a tensor, in its own shape; None where a part is held nowhere, or twice and
    not alike."""
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
    """Whether what was written reaches every element of a tensor."""
    marks = torch.zeros(_span(held), dtype=torch.bool)
    first, end = held.data_ptr(), held.data_ptr() + _span(held) * held.itemsize
    for at in range(bisect_right(begins, first - 1), bisect_right(begins, end - 1)):
        part, offset = written[at], (begins[at] - first) // held.itemsize
        if part.itemsize == held.itemsize and offset + _span(part) <= len(marks):
            marks.as_strided(part.shape, part.stride(), offset).fill_(True)
    return bool(marks.as_strided(held.shape, held.stride()).all())


def _span(tensor: Tensor) -> int:
    """How many elements of its memory lie from its first to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(step) for size, step in steps)
