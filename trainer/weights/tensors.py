"""Conversion of torch tensors to raw tensors of a weights file and back, bit for bit."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rollcall.schemas.errors import Unfit
from rollcall.schemas.weights import RawTensor

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor; for a sharded one it is gathered, and all ranks have to call it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """Convert a full value to the form of `tensor`: for a sharded one, to this rank's part."""
    if not hasattr(tensor, "full_tensor"):
        return value.to(tensor.device)
    from torch.distributed.tensor import distribute_tensor

    mesh = tensor.device_mesh
    return distribute_tensor(
        value.to(mesh.device_type), mesh, tensor.placements, src_data_rank=None
    )


def raw_of(tensor: Tensor) -> RawTensor:
    """Return a copy of the tensor's bits."""
    flat = whole(tensor.detach()).cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
    return RawTensor(NAMES[tensor.dtype], tuple(tensor.shape), data)


def view_of(tensor: Tensor) -> RawTensor:
    """Return a view of the tensor's bits, if possible, else a copy; a view changes with it."""
    flat = whole(tensor.detach())
    if flat.device.type != "cpu" or not flat.is_contiguous() or not flat.numel():
        return raw_of(tensor)
    bits = flat.reshape(-1).view(torch.uint8).numpy()
    return RawTensor(NAMES[tensor.dtype], tuple(tensor.shape), memoryview(bits))


def seen(raw: RawTensor) -> Tensor:
    """Return a tensor for reading only, on the same memory if that is writable."""
    if isinstance(raw.data, bytes) or raw.data.readonly:
        return tensor_of(raw)
    return torch.frombuffer(raw.data, dtype=DTYPES[raw.dtype]).reshape(raw.shape)


def tensor_of(raw: RawTensor) -> Tensor:
    """Return a tensor with its own memory on the CPU."""
    if not raw.data:
        return torch.empty(raw.shape, dtype=DTYPES[raw.dtype])
    return torch.frombuffer(bytearray(raw.data), dtype=DTYPES[raw.dtype]).reshape(raw.shape)


def exported(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and saved buffers, sorted by name, tied ones once.

    A tied tensor has the name under which the module first owns it: GPT-2's head is
    `transformer.wte.weight`, as in the files of its directory.
    """
    saved = model.state_dict(keep_vars=True).keys()
    owned = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: owned[name] for name in sorted(owned) if name in saved}


def tensors_of(
    model: nn.Module, raw: Callable[[Tensor], RawTensor] = raw_of
) -> dict[str, RawTensor]:
    """Return the content of this model's weights file."""
    return {name: raw(tensor) for name, tensor in exported(model).items()}


def load_tensors(model: nn.Module, tensors: Mapping[str, RawTensor]) -> None:
    """Overwrite the model's tensors in place; names, shapes and dtypes must be the model's own.

    Raises Unfit.
    """
    owned = exported(model)
    theirs = {name: (raw.dtype, raw.shape) for name, raw in tensors.items()}
    ours = {name: (NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in owned.items()}
    differing = sorted(name for name, _ in ours.items() ^ theirs.items())
    if differing:
        name = differing[0]
        msg = (
            f"tensor {name!r} is {theirs.get(name)} in the file and {ours.get(name)} in the model; "
            f"{len(set(differing))} differ; are these the weights of another model?"
        )
        raise Unfit(msg)
    with torch.no_grad():
        for name, tensor in owned.items():
            tensor.copy_(like(tensor, tensor_of(tensors[name])))
