"""Weights files that hold only an adapter (LoRA), for a policy with a frozen base model.

A weights file with the tensor `KIND` holds an adapter: for each adapted module two matrices under
peft's names, `MODULE.lora_A.weight` [rank, in] and `MODULE.lora_B.weight` [out, rank]. `KIND` is
JSON in bytes. It names the base by digest, so that an adapter is never added to other weights, and
the factor of the matrices' product. Source: LoRA, arXiv 2106.09685, §4.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import orjson

from rollcall.schemas.errors import WeightsDiffer
from rollcall.schemas.weights import PREFIX, RawTensor, each_of, weights_digest

KIND = "adapter.json"
ADAPTER = "adapter"
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""Suffixes of the names of the two matrices."""


@dataclass(frozen=True, slots=True)
class AdapterAbout:
    """The configuration of an adapter, stored with its weights."""

    base: str
    """`base_digest` of the weights that it was trained on."""
    rank: int
    alpha: float
    transposed: bool = False
    """True if adapted weights are [in, out], as in GPT-2; peft calls it `fan_in_fan_out`."""
    kind: str = ADAPTER

    @property
    def scale(self) -> float:
        """The factor of the product of the two matrices."""
        return self.alpha / self.rank

    def tensor(self) -> RawTensor:
        """Return the tensor that stores it in the weights file."""
        data = orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)
        return RawTensor("U8", (len(data),), data)

    @classmethod
    def of(cls, tensors: Mapping[str, RawTensor]) -> Self | None:
        """Read it from weights; None for weights of a whole model. Raises WeightsDiffer."""
        if KIND not in tensors:
            return None
        try:
            about = cls(**orjson.loads(tensors[KIND].data))
            known = about.kind == ADAPTER and about.rank >= 1 and about.alpha > 0
        except (ValueError, TypeError) as error:
            msg = f"the tensor {KIND!r} of the weights is no adapter's configuration: {error}"
            raise WeightsDiffer(msg) from error
        if not known:
            msg = (
                f"weights of kind {about.kind!r}, rank {about.rank} and alpha {about.alpha}; known "
                f"is kind {ADAPTER!r} with both above 0"
            )
            raise WeightsDiffer(msg)
        return about


def base_digest(tensors: Mapping[str, RawTensor]) -> str:
    """Return the identity of a base model: a digest of its weights in float32."""
    widened = each_of(tensors, lambda name: _float32(tensors[name]))
    return weights_digest(widened, PREFIX)


def modules_of(tensors: Mapping[str, RawTensor]) -> list[str]:
    """Return the adapted modules. Raises WeightsDiffer if a module has only one matrix."""
    halves = {end: {n.removesuffix(end) for n in tensors if n.endswith(end)} for end in (DOWN, UP)}
    odd = sorted(halves[DOWN] ^ halves[UP])
    other = sorted(name for name in tensors if not name.endswith((DOWN, UP)) and name != KIND)
    if odd or other:
        msg = f"an adapter with one matrix of modules {odd[:3]}, and unknown tensors {other[:3]}"
        raise WeightsDiffer(msg)
    return sorted(halves[DOWN])


def _float32(tensor: RawTensor) -> RawTensor:
    if tensor.dtype == "BF16":
        bits = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return RawTensor("F32", tensor.shape, bits.astype("<u4").tobytes())
    if tensor.dtype == "F16":
        return RawTensor(
            "F32", tensor.shape, np.frombuffer(tensor.data, "<f2").astype("<f4").tobytes()
        )
    return tensor
