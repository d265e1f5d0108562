"""From a version record into a model: every tensor accounted for, or none of them loaded."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from inference.base_weights import DTYPES
from inference.policy_dir import DTYPES as DTYPES_BY_NAME
from inference.policy_dir import Policy
from inference.traced_loading import Loaded, digest_of
from schemas.adapter_weights import DOWN, UP, AdapterAbout, modules_of
from schemas.errors import WorkFailed
from schemas.messages import PolicyVersion
from schemas.published_weights import HeldWeights
from schemas.weights import RawTensor


@dataclass(frozen=True, slots=True)
class SecondSet:
    """A model's own tensors, and others that may take their place."""

    own: tuple[Tensor, ...]
    other: tuple[Tensor, ...]
    published: Mapping[str, Tensor] = field(default_factory=dict)
    """What the version was published with, by name."""

    def model(self, model: Any) -> Any:
        """The model once more, with the other tensors in the place of its own.

        What both have besides is the same: nothing is copied but the modules' frames.
        """
        tensors = (*model.parameters(), *model.buffers())
        known: dict[int, object] = {id(tensor): tensor for tensor in tensors}
        for own, other in zip(self.own, self.other, strict=True):
            as_own = isinstance(own, nn.Parameter)
            known[id(own)] = nn.Parameter(other, requires_grad=False) if as_own else other
        return deepcopy(model, known)

    def swap(self) -> None:
        """Exchange the two by their pointers; twice is as if nothing had been."""
        for own, other in zip(self.own, self.other, strict=True):
            own.data, other.data = other.data, own.data

    def pointers(self) -> list[int]:
        """Where the other tensors lie; the model's own lie there after `swap`."""
        return [tensor.data_ptr() for tensor in self.other]


def same_weights(model: Any) -> Any:
    """The model once more, which looks into the same memory until either has others swapped in."""
    own = (*model.parameters(), *model.buffers())
    return SecondSet(own, tuple(tensor.detach() for tensor in own)).model(model)


def second_set(
    policy: Policy, policy_id: str, version: PolicyVersion, published: HeldWeights
) -> SecondSet:
    """The weights of a version in the model's precision and on its device, beside its own.

    Of an adapter, those of the policy's directory with it added. The model is left as it is, and
    may be at work meanwhile. Raises WorkFailed(`weights`) for weights that are not this model's,
    and what `HeldWeights.read` raises.
    """
    raw, model = _read(policy_id, version, published), policy.model
    state = model.state_dict()
    fresh: dict[int, Tensor] = {}
    whole = _whole(policy, version, raw, state)
    for name, tensor in whole.items():
        held = state[name]
        fresh[held.data_ptr()] = tensor.to(held.device, held.dtype)
    # Tied tensors may be one, or several that look into one place.
    named = (*model.named_parameters(), *model.named_buffers())
    own = tuple(tensor for _, tensor in named if tensor.data_ptr() in fresh)
    return SecondSet(own, tuple(fresh[tensor.data_ptr()].detach() for tensor in own), whole)


def require_held(model: Any, version: PolicyVersion, published: Mapping[str, Tensor]) -> None:
    """Raise WorkFailed(`weights`) unless the model holds these tensors, bit by bit.

    They are compared in the model's precision. Tensors of a version before, of another place or in
    another order are told by this whatever the precision, and however little a step changed.
    """
    state = model.state_dict()
    wrong = [
        name
        for name, tensor in published.items()
        if not _same_bits(state[name], tensor.to(state[name].device, state[name].dtype))
    ]
    if wrong:
        msg = (
            f"the model holds other tensors than version {version.version} was published with: "
            f"{', '.join(wrong[:3])}, {len(wrong)} in all; the version is read again"
        )
        raise WorkFailed("weights", msg, retriable=True)


@dataclass(frozen=True, slots=True)
class PublishedDigests:
    """What the tensors of a version are, in the dtypes in which an engine may hold them."""

    version: int
    file: Path
    """The tensors once more, for dtypes that are not `precision`."""
    precision: str
    by_name: Mapping[str, str]

    def of(self, name: str, dtype: str) -> str:
        """The digest of a tensor in that dtype."""
        if dtype == self.precision:
            return self.by_name[name]
        with safe_open(self.file, "pt") as opened:
            return digest_of(opened.get_tensor(name).to(getattr(torch, dtype)))


def digests_of(
    raw: Mapping[str, RawTensor], version: int, file: Path, precision: str
) -> PublishedDigests:
    """Name all tensors of a version; `file` holds them."""
    dtype = DTYPES_BY_NAME[precision]
    by_name = {name: digest_of(_as_tensor(tensor).to(dtype)) for name, tensor in raw.items()}
    return PublishedDigests(version, file, precision, by_name)


def require_loaded(
    published: PublishedDigests, loaded: Loaded, places: Mapping[str, "Place"]
) -> None:
    """Raise WorkFailed(`weights`) unless an engine holds these tensors, bit by bit, and no other.

    Of tied tensors it may hold one. Tensors of a version before are told by this however little a
    step changed, and whatever the loader passed over.
    """
    wrong, held = [], set[int]()
    for name, (dtype, digest) in loaded.digests.items():
        if published.of(name, dtype) == digest:
            held.add(places[name].pointer)
        else:
            wrong.append(name)
    absent = [each for each in published.by_name if places[each].pointer not in held]
    wrong += [name for name in absent if name not in wrong and not places[name].constant]
    if wrong or loaded.stale:
        msg = (
            f"the engine holds other tensors than version {published.version} was published with: "
            f"{', '.join(wrong[:3]) or 'none of its own'}, {len(wrong)} in all; of these of the "
            f"engine's a part is from before: {', '.join(loaded.stale[:3]) or 'none'}"
        )
        raise WorkFailed("weights", msg, retriable=True)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    first, second = (each.contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(first, second))


def _whole(
    policy: Policy, version: PolicyVersion, raw: dict[str, RawTensor], state: dict[str, Tensor]
) -> dict[str, Tensor]:
    """All of the model's tensors, by one name each."""
    about = AdapterAbout.of(raw)
    if about is None:
        _check_names(version, raw, places_of(policy.model))
        return {name: _as_tensor(tensor) for name, tensor in raw.items()}
    names = [module + end for module in modules_of(raw) for end in (DOWN, UP)]
    matrices = {name: _as_tensor(raw[name]) for name in names}
    return policy.base.merged(f"version {version.version}", about, matrices)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of a model lies, the same for tied ones, and its shape."""

    pointer: int
    shape: tuple[int, ...]
    constant: bool = False
    """Whether it is a buffer, which other engines may compute for themselves."""


def places_of(model: Any) -> dict[str, Place]:
    """By name; all that there is to know of a model to tell whether weights are its own."""
    state, buffers = model.state_dict(), dict(model.named_buffers())
    return {
        name: Place(held.data_ptr(), tuple(held.shape), name in buffers)
        for name, held in state.items()
    }


def weights_of(
    places: Mapping[str, Place], policy_id: str, version: PolicyVersion, published: HeldWeights
) -> dict[str, RawTensor]:
    """All weights of a version, for a model that has these places and is not at hand.

    Raises WorkFailed(`weights`) for weights that are not this model's, or an adapter alone, and
    what `HeldWeights.read` raises.
    """
    raw = _read(policy_id, version, published)
    if AdapterAbout.of(raw) is not None:
        msg = (
            f"version {version.version} of {policy_id!r} is an adapter alone, which this engine "
            "cannot add to its base; set [policy] weights to 'full' or 'delta'"
        )
        raise WorkFailed("weights", msg, retriable=False)
    _check_names(version, raw, places)
    return raw


def _read(policy_id: str, version: PolicyVersion, published: HeldWeights) -> dict[str, RawTensor]:
    if version.policy_id != policy_id:
        msg = (
            f"version {version.version} of policy {version.policy_id!r}; this engine serves "
            f"{policy_id!r}"
        )
        raise WorkFailed("weights", msg, retriable=False)
    return published.read(version)


def _check_names(
    version: PolicyVersion, raw: Mapping[str, RawTensor], places: Mapping[str, Place]
) -> None:
    """Every tensor of the model once, tied ones under any of their names, and no other."""
    covered = {places[name].pointer for name in raw if name in places}
    missing = [name for name in places if places[name].pointer not in covered]
    unknown = [name for name in raw if name not in places]
    unlike = [
        name
        for name in raw.keys() & places.keys()
        if raw[name].shape != places[name].shape or raw[name].dtype not in DTYPES
    ]
    if missing or unknown or unlike:
        msg = (
            f"the weights of version {version.version} are not this model's: missing "
            f"{missing[:3]}, unknown {unknown[:3]}, of another shape or dtype {unlike[:3]}"
        )
        raise WorkFailed("weights", msg, retriable=False)


def _as_tensor(raw: RawTensor) -> Tensor:
    """One copy of the bytes, which lets other threads run."""
    tensor = torch.empty(raw.shape, dtype=DTYPES[raw.dtype])
    bits = tensor.view(-1).view(torch.uint8).numpy()
    bits[:] = np.frombuffer(raw.data, np.uint8)
    return tensor
