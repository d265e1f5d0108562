"""The weights of a policy that are a base and, beside it, an adapter: what is published of them.

A weights file that holds the tensor `KIND` holds an adapter alone: of each adapted module two
matrices under the names that peft has for them, `MODULE.lora_A.weight` [rank, in] and
`MODULE.lora_B.weight` [out, rank]. `KIND` is JSON in bytes and says beside which base they stand,
by digest, and what their product is multiplied by; so no adapter is ever added to other weights
than those that it was trained beside. Source: LoRA, arXiv 2106.09685, §4.
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
    """The configuration of an adapter, as stored beside its weights."""

    base: str
    """`base_digest` of the weights beside which it stands."""
    rank: int
    alpha: float
    transposed: bool = False
    """True where adapted weights are [in, out], as GPT-2's are; peft calls it `fan_in_fan_out`."""
    kind: str = ADAPTER

    @property
    def scale(self) -> float:
        """The factor that the product of the two matrices is multiplied by."""
        return self.alpha / self.rank

    def tensor(self) -> RawTensor:
        """Return the form that is stored in the weights file."""
        data = orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)
        return RawTensor("U8", (len(data),), data)

    @classmethod
    def of(cls, tensors: Mapping[str, RawTensor]) -> Self | None:
        """Read it from weights; None for those of a whole model. Raises WeightsDiffer."""
        if KIND not in tensors:
            return None
        try:
            about = cls(**orjson.loads(tensors[KIND].data))
            known = about.kind == ADAPTER and about.rank >= 1 and about.alpha > 0
        except (ValueError, TypeError) as error:
            msg = f"weights whose {KIND!r} is not what an adapter says of itself: {error}"
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
    """The names of what an adapter adapts. Raises WeightsDiffer where half of one is missing."""
    halves = {end: {n.removesuffix(end) for n in tensors if n.endswith(end)} for end in (DOWN, UP)}
    odd = sorted(halves[DOWN] ^ halves[UP])
    other = sorted(name for name in tensors if not name.endswith((DOWN, UP)) and name != KIND)
    if odd or other:
        msg = f"an adapter with half of modules {odd[:3]}, and tensors {other[:3]} that it has not"
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
