"""Whether vLLM can run here; known without importing it, which takes ten seconds."""

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import Refused

NEEDS = "avx2"
"""What vLLM's CPU build asks of a processor."""
CPU_INFO = Path("/proc/cpuinfo")


def require_vllm(device: str) -> None:
    """Raise Refused where vLLM is not installed, or cannot run as this engine needs it."""
    if find_spec("vllm") is None:
        msg = (
            f"engine 'vllm' needs vLLM, which {sys.executable} has not; `make vllm` builds an "
            "environment that has it: set models.python to .venv/vllm/bin/python"
        )
        raise Refused(msg)
    if device != "cpu":
        msg = f"engine 'vllm' serves on a CPU, models.device is {device!r}; set it to 'cpu'"
        raise Refused(msg)
    flags = CPU_INFO.read_text().split() if CPU_INFO.is_file() else []
    if platform.machine() != "x86_64" or NEEDS not in flags:
        msg = (
            f"engine 'vllm' needs a processor with {NEEDS}, which this {platform.machine()} one "
            "has not; serve with models.engine = 'transformers', or on another machine"
        )
        raise Refused(msg)
