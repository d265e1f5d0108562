"""Publication of a trainer's weights: precision, full or as deltas.

Master weights stay float32; published weights are made from them. Digest, canary and deltas refer
to the published weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from rollcall.schemas.errors import Refused, Unavailable, WireError
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights, Published, write_delta
from rollcall.schemas.weights import (
    RawTensor,
    each_of,
    owned,
    owned_one,
    stem_of,
    weights_digest,
    write_tensors,
    write_weights,
)
from rollcall.schemas.weights_store import listed
from rollcall.trainer.config.tables import BFLOAT16
from rollcall.trainer.weights.tensors import exported, raw_of, seen, tensor_of, view_of

DELTA, FULL = "delta", "full"


@dataclass(frozen=True, slots=True)
class Publishing:
    """Settings of a recipe for published weights."""

    precision: str = ""
    """float32 or bfloat16; empty: float32."""
    weights: str = ""
    """full, delta, or the adapter alone, which is small and always full; empty: full."""
    full_every: int = 10
    """With deltas, versions divisible by this are full."""
    url: str = ""
    """The location, any fsspec URL; empty: the run's folder."""
    keep_bytes: int = 0
    """The most bytes of weights and checkpoints together; 0: no bound."""

    def place(self, directory: Path) -> str:
        """Return the location of the weights, given the run's folder."""
        return self.url or str(directory / "weights")

    @property
    def by_tensor(self) -> bool:
        """True if digests are over digests of tensors; with the defaults, over the whole."""
        return bool(self.precision or self.weights)

    def of(self, tensors: Mapping[str, RawTensor]) -> Mapping[str, RawTensor]:
        """Return the weights for servers: rounded to nearest, ties to even, if bfloat16 is set."""
        return rounded(tensors) if self.rounds else tensors

    @property
    def rounds(self) -> bool:
        """True if published tensors differ from the trainer's own."""
        return self.precision == BFLOAT16

    def digest(self, tensors: Mapping[str, RawTensor], like: str) -> str:
        """Return the digest of the published weights, of the same kind as the digest `like`."""
        return weights_digest(self.of(tensors), like)


def check_bound(keep_bytes: int, version_bytes: int, checkpoint_bytes: int) -> None:
    """Raise Refused if one version and one checkpoint exceed the bound; 0: no bound."""
    least = version_bytes + checkpoint_bytes
    if 0 < keep_bytes < least:
        msg = (
            f"policy.keep_bytes is {keep_bytes:,}, but one full version takes {version_bytes:,} "
            f"bytes and one checkpoint {checkpoint_bytes:,}; give at least {least:,}, or 0 for no "
            "bound"
        )
        raise Refused(msg)


def rounded(tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Convert float32 tensors to bfloat16, keep others; all get their own memory."""

    def bfloat16(name: str) -> RawTensor:
        tensor = tensors[name]
        return view_of(seen(tensor).bfloat16()) if tensor.dtype == "F32" else owned_one(tensor)

    made = each_of(tensors, bfloat16)
    return {name: made[name] for name in sorted(made)}


def widened(tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Convert bfloat16 tensors to float32, which is exact."""
    return {
        name: raw_of(tensor_of(tensor).float()) if tensor.dtype == "BF16" else tensor
        for name, tensor in tensors.items()
    }


@contextmanager
def as_published(model: nn.Module, precision: str, part: str = "") -> Iterator[None]:
    """Give the model its published weights inside the context; restore its own bits afterwards.

    Only tensors with `part` in their name are changed.
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
    """The writer of versions of one policy; it keeps the base of the next delta."""

    where: str
    """A directory or a URL."""
    publishing: Publishing
    _newest: Published | None = None
    _held: Mapping[str, RawTensor] = field(default_factory=dict)
    """The newest published weights, if a delta may follow."""

    def write(self, version: int, tensors: Mapping[str, RawTensor]) -> Published:
        """Publish a trainer's weights; a second call for the same version returns the first result.

        Raises Unavailable with nothing changed.
        """
        if self._newest is not None and self._newest.newest.version == version:
            return self._newest
        now = self.publishing.of(tensors)
        return self._keep(self._delta(version, now) or self._full(version, now), now)

    def resume(
        self, record: PolicyVersion | None, version: int, tensors: Mapping[str, RawTensor]
    ) -> Published | None:
        """Continue from a checkpoint's weights; write full ones if their files are gone or torn.

        Return the files if written. Raises Unavailable.
        """
        now = self.publishing.of(tensors)
        if record is not None and _is_whole(record):
            # The recipe may have another precision now; then the next version must be full.
            if self.publishing.digest(tensors, record.weights_digest) == record.weights_digest:
                self._keep(Published(record.full, record.deltas), now)
            return None
        return self._keep(self._full(version, now), now)

    def lost(self) -> bool:
        """Return True if a file that the newest version is made from is missing or truncated.

        Only names and sizes are compared. Raises Unavailable.
        """
        if self._newest is None:
            return False
        sizes = {file.name: file.size_bytes for file in listed(self.where)}
        files = (self._newest.full, *self._newest.deltas)
        return any(sizes.get(file.uri.rpartition("/")[2]) != file.size_bytes for file in files)

    def write_again(self, tensors: Mapping[str, RawTensor]) -> Published | None:
        """Publish the newest version's weights again, as full weights; None if there is none.

        Raises Unavailable with nothing changed.
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
        """Write a delta; None if the version has to be full."""
        base, every = self._newest, self.publishing.full_every
        if base is None or self.publishing.weights != DELTA:  # an adapter is small, and full
            return None
        if version % every == 0 or len(base.deltas) + 1 >= every or self.lost():
            return None
        return write_delta(self.where, version, base, self._held, now)

    def _keep(self, published: Published, now: Mapping[str, RawTensor]) -> Published:
        self._newest = published
        if self.publishing.weights == DELTA:
            # Float32 tensors may be views of the live weights; rounded ones are copies already.
            self._held = now if self.publishing.precision == BFLOAT16 else owned(now)
        return published


def _is_whole(record: PolicyVersion) -> bool:
    try:
        HeldWeights().read(record)
    except (Unavailable, WireError):
        return False
    return True
