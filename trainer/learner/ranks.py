"""The processes (ranks) of one learner, and the messages between them.

Each holds a part of every tensor and computes some of a batch's rows. Messages are bytes: tensors
as safetensors, plain values as JSON; nothing is ever unpickled. Each rank sums values of all ranks
in rank order, so that all get the same bits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import orjson
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from rollcall.schemas.errors import Refused, Unfit
from rollcall.schemas.weights import RawTensor, from_safetensors, to_safetensors
from rollcall.trainer.batch.rows import Batch

PATIENCE = timedelta(days=7)
"""The timeout of a rank that waits for a message: as long as rank 0 may wait for a batch. A rank
that dies is noticed at once, since its connections close."""


class Ranks(Protocol):
    """The rank of this process, and its communication with the others."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def all_gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, in rank order. All ranks have to call it."""
        ...

    def broadcast(self, message: bytes = b"") -> bytes:
        """Return the message of rank 0 (broadcast). All ranks have to call it."""
        ...

    def spread(self, model: nn.Module) -> None:
        """Shard the model: keep this rank's part of each tensor."""
        ...


class ProcessRanks:
    """Processes of one torch.distributed group."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    @classmethod
    def join(
        cls, device: str, method: str = "env://", rank: int = -1, count: int = -1
    ) -> "ProcessRanks":
        """Join the process group: gloo for messages and CPU tensors, nccl for GPU tensors."""
        backend = "gloo" if torch.device(device).type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend, init_method=method, rank=rank, world_size=count, timeout=PATIENCE
        )
        return cls()

    def leave(self) -> None:
        dist.destroy_process_group()

    def all_gather(self, message: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        with self._all_alive():
            dist.all_gather(sizes, torch.tensor([len(message)]))
            # all_gather needs equal sizes, so messages are padded to the longest.
            most = max(int(size) for size in sizes)
            found = [torch.zeros(most, dtype=torch.uint8) for _ in sizes]
            dist.all_gather(found, _bytes(message.ljust(most, b"\0")))
        return [_data(each[: int(size)]) for each, size in zip(found, sizes, strict=True)]

    def broadcast(self, message: bytes = b"") -> bytes:
        size = torch.tensor([len(message)])
        with self._all_alive():
            dist.broadcast(size, 0)
            sent = _bytes(message) if self.rank == 0 else torch.zeros(int(size), dtype=torch.uint8)
            dist.broadcast(sent, 0)
        return _data(sent)

    @contextmanager
    def _all_alive(self) -> Iterator[None]:
        """Raise Unfit if another rank has ended."""
        try:
            yield
        except RuntimeError as error:
            msg = f"rank {self.rank} of {self.count}: another rank has ended: {error}; see its log"
            raise Unfit(msg) from error

    def spread(self, model: nn.Module) -> None:
        """Shard by FSDP2, layer by layer; gradients are summed: weights contain the denominators.

        Source: PyTorch FSDP, arXiv 2304.11277, §3.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.count,))
        for module in (*layers_of(model), model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                # gloo supports plain sums only.
                module.set_force_sum_reduction_for_comms(True)


def own_rows(batch: Batch, rank: int, count: int) -> list[int]:
    """Return a contiguous range of rows, in log order, with about equal tokens for every rank.

    Rows of a group are adjacent, so most shared prefixes stay on one rank.
    """
    sizes = np.array([len(row.token_ids) for row in batch.rows])
    middles = np.cumsum(sizes) - sizes / 2
    owners = np.minimum(middles * count // max(sizes.sum(), 1), count - 1)
    return [int(b) for b in np.flatnonzero(owners == rank)]


def require_alike(ranks: Ranks, values: Mapping[str, str]) -> None:
    """Raise Refused, on all ranks, if one has another value than rank 0; name both values."""
    gathered = ranks.all_gather(orjson.dumps(dict(values)))
    first, *others = map(orjson.loads, gathered)
    for rank, other in enumerate(others, 1):
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                msg = (
                    f"rank {rank} has {key} {other.get(key)}, rank 0 has {first.get(key)}; "
                    "all ranks must read the same run and the same policy directory"
                )
                raise Refused(msg)


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A message between ranks: plain values and tensors."""

    plain: Mapping[str, object]
    tensors: Mapping[str, RawTensor]

    def packed(self) -> bytes:
        head = orjson.dumps(dict(self.plain))
        return len(head).to_bytes(8, "little") + head + to_safetensors(self.tensors)

    @classmethod
    def of(cls, data: bytes) -> "RankMessage":
        end = 8 + int.from_bytes(data[:8], "little")
        return cls(orjson.loads(data[8:end]), from_safetensors(data[end:]))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the transformer layers of a model, without nested ones."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module not in inside:
            found.append(module)
            inside.update(module.modules())
    return found


def _bytes(message: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(message, np.uint8).copy())


def _data(tensor: Tensor) -> bytes:
    data: bytes = tensor.numpy().tobytes()
    return data
