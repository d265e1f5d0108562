"""Check if vLLM can run here, without importing it, which takes ten seconds."""

import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from rollcall.schemas.errors import Refused

OWNER = "ENGINE_ENDS_WITH_PID"
"""The environment variable with the pid of the process that starts vLLM's processes."""
NEEDS = "avx2"
"""The processor feature that vLLM's CPU build needs."""
CPU_INFO = Path("/proc/cpuinfo")
LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
LOOK_S = 30.0


def require_vllm(device: str, python: str = "") -> None:
    """Raise Refused if vLLM cannot run as this engine needs it, or is not installed: for this or
    another Python."""
    if not (_has_vllm(python) if python else find_spec("vllm")):
        msg = (
            f"engine 'vllm' needs vLLM, which {python or sys.executable} has not; `make vllm` "
            "builds an environment that has it: set models.python to .venv/vllm/bin/python"
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


def _has_vllm(python: str) -> bool:
    """Return True if a Python finds vLLM; False if it is no Python or does not answer."""
    command = [os.path.abspath(python), "-P", "-c", LOOK]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
