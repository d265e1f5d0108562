"""Properties of the machine that the bits of a step depend on."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist


def machine(device: str) -> dict[str, str]:
    """Return threads, ranks, CPU model and capability, torch's version and the device, as recorded
    in train.steps.
    """
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return {
        "threads": str(torch.get_num_threads()),
        "ranks": str(dist.get_world_size() if dist.is_initialized() else 1),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "torch": str(torch.__version__),
        "device": name,
    }


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield a description of each property that differs or was not recorded."""
    for key in sorted({*then, *now}):
        was, is_ = then.get(key, ""), now.get(key, "")
        if was != is_:
            yield f"{key} {was or 'unknown'} then, {is_ or 'unknown'} now"


@cache
def processor() -> str:
    """Return vendor, family and model of the CPU from /proc/cpuinfo; elsewhere the architecture.

    CPUs with the same capability may still sum in another order: libraries dispatch by model.
    """
    entries: dict[str, str] = {}
    with suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        for line in first.splitlines():
            name, _, value = line.partition(":")
            entries[name.strip()] = value.strip()
    known = [entries[name] for name in ("vendor_id", "cpu family", "model") if name in entries]
    return " ".join(known) or platform.machine()
