"""A version's published weights: the last full ones, and every delta since.

The invariant: a reader gets exactly the published weights, or an error. A delta is applied only to
weights with the version and digest that it was made from, and the result must have the announced
digest. Otherwise everything is read again from the full weights on. Two versions are never mixed.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from rollcall.schemas.errors import Unavailable, WeightsDiffer, WireError
from rollcall.schemas.messages import PolicyVersion, WeightsFile
from rollcall.schemas.weight_deltas import are_alike, compared, encoded, followed
from rollcall.schemas.weights import RawTensor, over_tensors, read_weights, weights_digest
from rollcall.schemas.weights_store import opened, put

MOST_DENSITY = 0.1
"""The largest share of changed elements for a delta; above it, full weights are published."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Published:
    """The location of a version's weights: `PolicyVersion.full` and `.deltas`."""

    full: WeightsFile
    deltas: tuple[WeightsFile, ...] = ()
    sha256s: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Digest of each tensor, if known from writing the version."""

    @property
    def newest(self) -> WeightsFile:
        """The last file of the chain, which gives this version."""
        return self.deltas[-1] if self.deltas else self.full

    @property
    def weights_digest(self) -> str:
        return self.newest.weights_digest


def write_delta(
    directory_uri: str,
    version: int,
    base: Published,
    before: Mapping[str, RawTensor],
    now: Mapping[str, RawTensor],
) -> Published | None:
    """Publish a delta from `base`, whose weights are `before`, to `now`.

    Returns None if a delta does not suit: the tensors differ in form, or too many elements changed.
    Raises Unavailable.
    """
    if not are_alike(before, now):
        return None
    delta, sha256s = compared(before, now)
    if delta.density > MOST_DENSITY:
        return None
    data = encoded(delta)
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"v{version:08d}-on-v{base.newest.version:08d}-{sha256[:16]}.delta"
    uri = put(directory_uri, [data], lambda: name)
    digest = over_tensors(now, sha256s)
    made = WeightsFile(uri, sha256, len(data), digest, version, base.newest.version)
    return Published(base.full, (*base.deltas, made), sha256s)


@dataclass(eq=False)
class HeldWeights:
    """The last weights that were read, to which the next delta may be applied.

    A server that stays at one version sets `keeps` to False.
    """

    keeps: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    _file: WeightsFile | None = None
    _tensors: dict[str, RawTensor] = field(default_factory=dict)

    def read(self, version: PolicyVersion) -> dict[str, RawTensor]:
        """Read the weights of a version, from the held ones if they are part of its chain.

        Raises WeightsMissing, Unavailable, or WireError; the held weights are then kept.
        """
        if not version.deltas:
            tensors = read_weights(version.full)
            if self._file is not None:  # this policy publishes deltas: the next may start here
                self._file, self._tensors = version.full, tensors
            return tensors
        require_chain(version)
        tensors = self._from_held(version) or self._from_full(version)
        if self.keeps:
            self._file, self._tensors = version.deltas[-1], tensors
        return tensors

    def forget(self) -> None:
        """Drop the held weights; the next version is read from its full weights on."""
        self._file, self._tensors = None, {}

    def _from_held(self, version: PolicyVersion) -> dict[str, RawTensor] | None:
        files = (version.full, *version.deltas)
        held = self._file
        place = next((at for at, file in enumerate(files) if held and _is_same(file, held)), None)
        if place is None:
            return None
        try:
            return _followed(self._tensors, version.deltas[place:])
        except (Unavailable, WireError) as error:
            self._say(version, str(error))
            return None

    def _from_full(self, version: PolicyVersion) -> dict[str, RawTensor]:
        self.counts["from_full"] += 1
        return _followed(read_weights(version.full), version.deltas)

    def _say(self, version: PolicyVersion, error: str) -> None:
        self.counts["delta_failed"] += 1
        log.warning(
            "delta_failed",
            policy_id=version.policy_id,
            version=version.version,
            error=error,
            remedy="everything is read again from the last full weights on",
        )


def require_chain(version: PolicyVersion) -> None:
    """Raise WeightsDiffer if a record's deltas do not form a chain from its full weights."""
    files = (version.full, *version.deltas)
    bases = [-1, *(file.version for file in files[:-1])]
    told = [file.base_version for file in files]
    digests = files[-1].weights_digest == version.weights_digest
    if bases != told or files[-1].version != version.version or not digests:
        steps = ", ".join(f"{file.base_version} to {file.version}" for file in files[1:]) or "none"
        msg = (
            f"version {version.version} of policy {version.policy_id!r} has full weights of "
            f"version {version.full.version} and deltas {steps}, which are no chain to it"
        )
        raise WeightsDiffer(msg)


def _followed(
    tensors: Mapping[str, RawTensor], deltas: Sequence[WeightsFile]
) -> dict[str, RawTensor]:
    """Apply deltas in order, and check the digest that the last one promises."""
    made = dict(tensors)
    for file in deltas:
        made = followed(made, _read(file))
    if deltas:
        promised = deltas[-1]
        digest = weights_digest(made, promised.weights_digest)
        if digest != promised.weights_digest:
            msg = (
                f"the delta at {promised.uri!r} gives weights of digest {digest[:16]}, but the "
                f"record of version {promised.version} promises {promised.weights_digest[:16]}"
            )
            raise WeightsDiffer(msg)
    return made


def _is_same(file: WeightsFile, held: WeightsFile) -> bool:
    """Return True if the held weights have the version and the digest of the file."""
    return (file.version, file.weights_digest) == (held.version, held.weights_digest)


def _read(file: WeightsFile) -> bytes:
    with opened(file.uri) as (stream, size_bytes):
        data = stream.read() if size_bytes == file.size_bytes else b""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != file.sha256:
        msg = (
            f"the delta of version {file.version} at {file.uri!r} holds {size_bytes} bytes that "
            f"are not the {file.size_bytes} which the record promises; was it truncated?"
        )
        raise WeightsDiffer(msg)
    return data
