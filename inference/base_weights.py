"""The weights that a policy's directory holds, kept for adapters that are served beside them.

They are read when the first adapter comes, and held once, in the directory's own precision. Tensors
that no adapter changes share the model's memory from then on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from rollcall.schemas.adapter_weights import DOWN, UP, AdapterAbout, base_digest
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.weights import RawTensor

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(eq=False)
class BaseWeights:
    """The base weights of one policy directory; safe to call from any thread."""

    load: Callable[[], Any]
    """Load a fresh copy of the directory's model."""
    _tensors: dict[str, Tensor] = field(default_factory=dict)
    _digest: str = ""
    _lock: Lock = field(default_factory=Lock)

    def merged(
        self, what: str, about: AdapterAbout, adapter: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return all weights with an adapter added; tensors that it does not change are not copied.

        W + scale B A, in float32, rounded to the base's precision. Raises WorkFailed(`weights`),
        naming the field, for an adapter of another base or of other modules.
        """
        self._read()
        if about.base != self._digest:
            msg = (
                f"{what} is an adapter whose base has digest {about.base}, but the weights of this "
                f"server's policy directory have {self._digest}; serve the directory that its run "
                "began with"
            )
            raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)
        return self._tensors | {
            f"{module}.weight": self._adapted(what, about, module, adapter)
            for module in sorted(name.removesuffix(DOWN) for name in adapter if DOWN in name)
        }

    def _adapted(
        self, what: str, about: AdapterAbout, module: str, adapter: Mapping[str, Tensor]
    ) -> Tensor:
        down_RI, up_OR = adapter[module + DOWN].float(), adapter[module + UP].float()
        base = self._tensors.get(f"{module}.weight")
        wanted = (down_RI.shape[1], up_OR.shape[0]) if about.transposed else None
        wanted = wanted or (up_OR.shape[0], down_RI.shape[1])
        ranks = {about.rank, down_RI.shape[0], up_OR.shape[1]}
        if base is None or tuple(base.shape) != wanted or len(ranks) > 1:
            found = None if base is None else tuple(base.shape)
            msg = (
                f"{what} is an adapter of rank {about.rank} for module {module!r} of shape "
                f"{wanted} with ranks {sorted(ranks)}; this server's model has {found} there"
            )
            raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)
        added = (up_OR @ down_RI) * about.scale
        return (base.float() + (added.T if about.transposed else added)).to(base.dtype)

    def _read(self) -> None:
        with self._lock:
            if self._digest:
                return
            model = self.load()
            saved = model.state_dict().keys()
            owned = dict(model.named_parameters()) | dict(model.named_buffers())
            self._tensors = {n: owned[n].detach() for n in sorted(owned) if n in saved}
            self._digest = base_digest({n: _raw(t) for n, t in self._tensors.items()})


def _raw(tensor: Tensor) -> RawTensor:
    bits = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return RawTensor(NAMES[tensor.dtype], tuple(tensor.shape), bits.tobytes())
