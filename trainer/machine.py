"""What the bits of a step depend on besides its samples and the weights before it."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist


def machine(device: str) -> dict[str, str]:
    """Threads and processes, which CPU it is and what of it torch uses, torch's version and the
    device, as train.steps records them.
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
    """What was otherwise, or was not recorded, one by one."""
    for key in sorted({*then, *now}):
        was, is_ = then.get(key, ""), now.get(key, "")
        if was != is_:
            yield f"{key} {was or 'unknown'} then, {is_ or 'unknown'} now"


@cache
def processor() -> str:
    """Vendor, family and model of the CPU, as Linux tells them; elsewhere its architecture.

    Two that can do the same for torch may add in another order: its libraries choose by model.
    """
    told: dict[str, str] = {}
    with suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        for line in first.splitlines():
            name, _, value = line.partition(":")
            told[name.strip()] = value.strip()
    known = [told[name] for name in ("vendor_id", "cpu family", "model") if name in told]
    return " ".join(known) or platform.machine()
