"""Load the weights of a version record into a model: all of its tensors, or none."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from rollcall.inference.base_weights import DTYPES
from rollcall.inference.policy_dir import DTYPES as DTYPES_BY_NAME
from rollcall.inference.policy_dir import Policy
from rollcall.inference.traced_loading import Loaded, digest_of
from rollcall.schemas.adapter_weights import DOWN, UP, AdapterAbout, modules_of
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights
from rollcall.schemas.weights import RawTensor


@dataclass(frozen=True, slots=True)
class SecondSet:
    """A model's own tensors, and a second set that can be swapped in."""

    own: tuple[Tensor, ...]
    other: tuple[Tensor, ...]
    published: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors as published, by name."""

    def model(self, model: Any) -> Any:
        """Return a copy of the model with the other tensors in place of its own.

        All else is shared: only the module objects are copied.
        """
        tensors = (*model.parameters(), *model.buffers())
        known: dict[int, object] = {id(tensor): tensor for tensor in tensors}
        for own, other in zip(self.own, self.other, strict=True):
            as_own = isinstance(own, nn.Parameter)
            known[id(own)] = nn.Parameter(other, requires_grad=False) if as_own else other
        return deepcopy(model, known)

    def swap(self) -> None:
        """Exchange the two sets by their pointers; a second swap undoes the first."""
        for own, other in zip(self.own, self.other, strict=True):
            own.data, other.data = other.data, own.data

    def pointers(self) -> list[int]:
        """Return the addresses of the other tensors, which are the model's own after `swap`."""
        return [tensor.data_ptr() for tensor in self.other]


def same_weights(model: Any) -> Any:
    """Return a copy of the model that shares its memory until either swaps in other tensors."""
    own = (*model.parameters(), *model.buffers())
    return SecondSet(own, tuple(tensor.detach() for tensor in own)).model(model)


def second_set(
    policy: Policy, policy_id: str, version: PolicyVersion, published: HeldWeights
) -> SecondSet:
    """Return the weights of a version in the model's precision and on its device, beside its own.

    For an adapter, they are those of the policy's directory with it added. The model is unchanged
    and may run meanwhile. Raises WorkFailed(`weights`) for weights that are not this model's,
    and the errors of `HeldWeights.read`.
    """
    raw, model = _read(policy_id, version, published), policy.model
    state = model.state_dict()
    fresh: dict[int, Tensor] = {}
    whole = _whole(policy, version, raw, state)
    for name, tensor in whole.items():
        held = state[name]
        fresh[held.data_ptr()] = tensor.to(held.device, held.dtype)
    # Tied tensors may be one tensor, or several that share memory.
    named = (*model.named_parameters(), *model.named_buffers())
    own = tuple(tensor for _, tensor in named if tensor.data_ptr() in fresh)
    return SecondSet(own, tuple(fresh[tensor.data_ptr()].detach() for tensor in own), whole)


def require_held(model: Any, version: PolicyVersion, published: Mapping[str, Tensor]) -> None:
    """Raise WorkFailed(`weights`) unless the model holds these tensors, bit by bit.

    They are compared in the model's precision. This detects tensors of an earlier version, of
    another place or in another order, in any precision and for the smallest change of a step.
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
        raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=True)


@dataclass(frozen=True, slots=True)
class PublishedDigests:
    """The digests of a version's tensors, in the dtypes in which an engine may hold them."""

    version: int
    file: Path
    """The tensors themselves, for dtypes other than `precision`."""
    precision: str
    by_name: Mapping[str, str]

    def of(self, name: str, dtype: str) -> str:
        """Return the digest of a tensor in that dtype."""
        if dtype == self.precision:
            return self.by_name[name]
        with safe_open(self.file, "pt") as opened:
            return digest_of(opened.get_tensor(name).to(getattr(torch, dtype)))


def digests_of(
    raw: Mapping[str, RawTensor], version: int, file: Path, precision: str
) -> PublishedDigests:
    """Return the digests of all tensors of a version; `file` holds the tensors."""
    dtype = DTYPES_BY_NAME[precision]
    by_name = {name: digest_of(_as_tensor(tensor).to(dtype)) for name, tensor in raw.items()}
    return PublishedDigests(version, file, precision, by_name)


def require_loaded(
    published: PublishedDigests, loaded: Loaded, places: Mapping[str, "TensorPlace"]
) -> None:
    """Raise WorkFailed(`weights`) unless an engine holds exactly these tensors, bit by bit.

    Of tied tensors it may hold one. This detects tensors of an earlier version, for the smallest
    change of a step and for tensors that the loader skipped.
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
        raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=True)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    first, second = (each.contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(first, second))


def _whole(
    policy: Policy, version: PolicyVersion, raw: dict[str, RawTensor], state: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return all of the model's tensors, each under one name."""
    about = AdapterAbout.of(raw)
    if about is None:
        _check_names(version, raw, places_of(policy.model))
        return {name: _as_tensor(tensor) for name, tensor in raw.items()}
    names = [module + end for module in modules_of(raw) for end in (DOWN, UP)]
    matrices = {name: _as_tensor(raw[name]) for name in names}
    return policy.base.merged(f"version {version.version}", about, matrices)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The address of a model's tensor, equal for tied ones, and its shape."""

    pointer: int
    shape: tuple[int, ...]
    constant: bool = False
    """True for a buffer, which other engines may compute themselves."""


def places_of(model: Any) -> dict[str, TensorPlace]:
    """Return the places of a model by name, enough to check whether weights are its own."""
    state, buffers = model.state_dict(), dict(model.named_buffers())
    return {
        name: TensorPlace(held.data_ptr(), tuple(held.shape), name in buffers)
        for name, held in state.items()
    }


def weights_of(
    places: Mapping[str, TensorPlace],
    policy_id: str,
    version: PolicyVersion,
    published: HeldWeights,
) -> dict[str, RawTensor]:
    """Return all weights of a version, for a model in another process that has these places.

    Raises WorkFailed(`weights`) for weights that are not this model's or only an adapter, and the
    errors of `HeldWeights.read`.
    """
    raw = _read(policy_id, version, published)
    if AdapterAbout.of(raw) is not None:
        msg = (
            f"version {version.version} of {policy_id!r} is an adapter alone, which this engine "
            "cannot add to its base; set [policy] weights to 'full' or 'delta'"
        )
        raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)
    _check_names(version, raw, places)
    return raw


def _read(policy_id: str, version: PolicyVersion, published: HeldWeights) -> dict[str, RawTensor]:
    if version.policy_id != policy_id:
        msg = (
            f"version {version.version} of policy {version.policy_id!r}; this engine serves "
            f"{policy_id!r}"
        )
        raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)
    return published.read(version)


def _check_names(
    version: PolicyVersion, raw: Mapping[str, RawTensor], places: Mapping[str, TensorPlace]
) -> None:
    """Require each tensor of the model once, tied ones under any of their names, and no other."""
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
        raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)


def _as_tensor(raw: RawTensor) -> Tensor:
    """Return a tensor with a copy of the bytes; copying releases the GIL."""
    tensor = torch.empty(raw.shape, dtype=DTYPES[raw.dtype])
    bits = tensor.view(-1).view(torch.uint8).numpy()
    bits[:] = np.frombuffer(raw.data, np.uint8)
    return tensor
