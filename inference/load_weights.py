"""From a version record into a model: every tensor accounted for, or none of them loaded."""

from typing import Any

import torch
from torch import Tensor

from schemas.errors import WorkFailed
from schemas.messages import PolicyVersion
from schemas.weights import RawTensor, read_weights

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def load_into(model: Any, policy_id: str, version: PolicyVersion) -> None:
    """Read the full weights of a version and copy them into the model, in the model's precision.

    Raises WorkFailed(`weights`) for weights that are not this model's, and what `read_weights`
    raises; the model is as it was then.
    """
    if version.policy_id != policy_id or version.deltas:
        msg = (
            f"version {version.version} of policy {version.policy_id!r} with "
            f"{len(version.deltas)} deltas; this engine serves {policy_id!r} and loads full "
            "weights only"
        )
        raise WorkFailed("weights", msg, retriable=False)
    raw = read_weights(version.full)
    state = model.state_dict()
    _check_names(version, raw, state)
    for name, tensor in raw.items():
        state[name].copy_(_as_tensor(tensor))


def _check_names(
    version: PolicyVersion, raw: dict[str, RawTensor], state: dict[str, Tensor]
) -> None:
    """Every tensor of the model once, tied ones under any of their names, and no other."""
    covered = {state[name].data_ptr() for name in raw if name in state}
    missing = [name for name in state if state[name].data_ptr() not in covered]
    unknown = [name for name in raw if name not in state]
    unlike = [
        name
        for name in raw.keys() & state.keys()
        if raw[name].shape != tuple(state[name].shape) or raw[name].dtype not in DTYPES
    ]
    if missing or unknown or unlike:
        msg = (
            f"the weights of version {version.version} are not this model's: missing "
            f"{missing[:3]}, unknown {unknown[:3]}, of another shape or dtype {unlike[:3]}"
        )
        raise WorkFailed("weights", msg, retriable=False)


def _as_tensor(raw: RawTensor) -> Tensor:
    return torch.frombuffer(bytearray(raw.data), dtype=DTYPES[raw.dtype]).reshape(raw.shape)
