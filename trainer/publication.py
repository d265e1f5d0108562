"""How a trainer publishes its weights: in which precision, full or as what changed.

Masters stay float32 whatever is published: what servers hold is made of them, the digest and the
canary are of that, and a delta is between two of those.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from schemas.errors import Refused, Unavailable, WireError
from schemas.messages import PolicyVersion
from schemas.published_weights import HeldWeights, Published, write_delta
from schemas.tensor_digests import each_of
from schemas.weights import (
    RawTensor,
    owned,
    owned_one,
    stem_of,
    weights_digest,
    write_tensors,
    write_weights,
)
from schemas.weights_store import listed
from trainer.arithmetic import BFLOAT16
from trainer.tensors import exported, raw_of, seen, tensor_of, view_of

DELTA, FULL = "delta", "full"


@dataclass(frozen=True, slots=True)
class Publishing:
    """What a recipe says of it; where it says nothing, any server of the last release can read."""

    precision: str = ""
    """float32 or bfloat16; empty: float32."""
    weights: str = ""
    """full, delta, or the adapter alone, which is small and always full; empty: full."""
    full_every: int = 10
    """Among deltas, versions that are divisible by it are full."""
    url: str = ""
    """Where they are published, any fsspec URL; empty: into the run's folder."""
    keep_bytes: int = 0
    """Weights and checkpoints together take no more than this; 0 is without bound."""

    def place(self, directory: Path) -> str:
        """Where the weights of a run lie whose folder this is."""
        return self.url or str(directory / "weights")

    @property
    def by_tensor(self) -> bool:
        """Whether digests are over digests of tensors, which the last release does not know."""
        return bool(self.precision or self.weights)

    def of(self, tensors: Mapping[str, RawTensor]) -> Mapping[str, RawTensor]:
        """What servers are given of a trainer's weights: float32 rounded to nearest, ties even."""
        return rounded(tensors) if self.rounds else tensors

    @property
    def rounds(self) -> bool:
        """Whether what is published are other tensors than the trainer's own."""
        return self.precision == BFLOAT16

    def digest(self, tensors: Mapping[str, RawTensor], like: str) -> str:
        """What a trainer's weights are known by once they are published; compare with `like`."""
        return weights_digest(self.of(tensors), like)


def check_bound(keep_bytes: int, version_bytes: int, checkpoint_bytes: int) -> None:
    """Raise Refused where both do not fit into a bound; 0 is none."""
    least = version_bytes + checkpoint_bytes
    if 0 < keep_bytes < least:
        msg = (
            f"policy.keep_bytes is {keep_bytes:,}, but one full version takes {version_bytes:,} "
            f"bytes and one checkpoint {checkpoint_bytes:,}; give at least {least:,}, or 0 for no "
            "bound"
        )
        raise Refused(msg)


def rounded(tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Float32 tensors in bfloat16, the others as they are; all in memory of their own."""

    def bfloat16(name: str) -> RawTensor:
        tensor = tensors[name]
        return view_of(seen(tensor).bfloat16()) if tensor.dtype == "F32" else owned_one(tensor)

    made = each_of(tensors, bfloat16)
    return {name: made[name] for name in sorted(made)}


def widened(tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Bfloat16 tensors in float32, as a trainer computes with them; nothing is lost."""
    return {
        name: raw_of(tensor_of(tensor).float()) if tensor.dtype == "BF16" else tensor
        for name, tensor in tensors.items()
    }


@contextmanager
def as_published(model: nn.Module, precision: str, part: str = "") -> Iterator[None]:
    """Within, a model has the weights that are published of it; then its own again, bit for bit.

    `part` is in the names of those that are.
    """
    rounds = precision == BFLOAT16
    named = exported(model).items()
    owned = [t for n, t in named if rounds and part in n and t.dtype == torch.float32]
    with torch.no_grad():
        masters = [tensor.detach().clone() for tensor in owned]
        try:
            for tensor in owned:
                tensor.copy_(tensor.bfloat16())
            yield
        finally:
            for tensor, master in zip(owned, masters, strict=True):
                tensor.copy_(master)


@dataclass(eq=False)
class Publication:
    """Writes versions of one policy, and knows which one the next delta is made from."""

    where: str
    """A directory or a URL."""
    publishing: Publishing
    _newest: Published | None = None
    _held: Mapping[str, RawTensor] = field(default_factory=dict)
    """The weights of the newest, where a delta may follow."""

    def write(self, version: int, tensors: Mapping[str, RawTensor]) -> Published:
        """Publish a trainer's weights; asked again for the same version, the same is returned.

        Raises Unavailable; then all is as before.
        """
        if self._newest is not None and self._newest.newest.version == version:
            return self._newest
        now = self.publishing.of(tensors)
        return self._keep(self._delta(version, now) or self._full(version, now), now)

    def resume(
        self, record: PolicyVersion | None, version: int, tensors: Mapping[str, RawTensor]
    ) -> Published | None:
        """Go on from a checkpoint's weights; where their files are gone or torn, write full ones.

        Returns what was written. Raises Unavailable.
        """
        now = self.publishing.of(tensors)
        if record is not None and _is_whole(record):
            # A recipe may have been changed to another precision: then a full version is next.
            if self.publishing.digest(tensors, record.weights_digest) == record.weights_digest:
                self._keep(Published(record.full, record.deltas), now)
            return None
        return self._keep(self._full(version, now), now)

    def lost(self) -> bool:
        """Whether a file that leads to the newest version is gone, or was cut short.

        Only names and sizes are looked at. Raises Unavailable.
        """
        if self._newest is None:
            return False
        sizes = {file.name: file.size_bytes for file in listed(self.where)}
        files = (self._newest.full, *self._newest.deltas)
        return any(sizes.get(file.uri.rpartition("/")[2]) != file.size_bytes for file in files)

    def write_again(self, tensors: Mapping[str, RawTensor]) -> Published | None:
        """Publish the newest version's weights once more, full; None where there is none.

        Raises Unavailable; then all is as before.
        """
        if self._newest is None:
            return None
        now = self.publishing.of(tensors)
        return self._keep(self._full(self._newest.newest.version, now), now)

    def _full(self, version: int, now: Mapping[str, RawTensor]) -> Published:
        if not self.publishing.by_tensor:
            return Published(write_weights(self.where, version, now))
        file = write_tensors(self.where, stem_of(version), now)
        return Published(file.as_version(version, now), sha256s=file.sha256s)

    def _delta(self, version: int, now: Mapping[str, RawTensor]) -> Published | None:
        """None where the version is to be full."""
        base, every = self._newest, self.publishing.full_every
        if base is None or self.publishing.weights != DELTA:  # an adapter is small, and full
            return None
        if version % every == 0 or len(base.deltas) + 1 >= every or self.lost():
            return None
        return write_delta(self.where, version, base, self._held, now)

    def _keep(self, published: Published, now: Mapping[str, RawTensor]) -> Published:
        self._newest = published
        if self.publishing.weights == DELTA:
            self._held = now if self.publishing.precision == BFLOAT16 else owned(now)
        return published


def _is_whole(record: PolicyVersion) -> bool:
    try:
        HeldWeights().read(record)
    except (Unavailable, WireError):
        return False
    return True
