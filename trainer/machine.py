"""What the bits of a step depend on besides its samples and the weights before it."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist


def machine(device: str) -> dict[str, str]:
    """Threads and processes, what the CPU can do, torch's version and the device, as train.steps
    records them.
    """
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return {
        "threads": str(torch.get_num_threads()),
        "ranks": str(dist.get_world_size() if dist.is_initialized() else 1),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "device": name,
    }


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What was otherwise, one by one; nothing where it was not recorded."""
    for key in sorted(then):
        if then[key] != now.get(key, ""):
            yield f"{key} {then[key]} then, {now.get(key) or 'unknown'} now"
