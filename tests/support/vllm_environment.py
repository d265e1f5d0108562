"""The environment that `make vllm` builds, for tests that run in ours beside it."""

import os
from pathlib import Path

from tests.support.command_line import ROOT
from tests.support.engines import REQUIRED, left_out

PYTHON = ROOT / ".venv/vllm/bin/python"


def vllm_python(what: str) -> Path:
    """Its Python. Leaves the test out, with a word on what, unless `make vllm` runs it: the
    environment may be there, and `make test` still has no minutes to spare for it."""
    if "vllm" not in os.environ.get(REQUIRED, "").split(",") or not PYTHON.exists():
        left_out("vllm", f"{what}; `make vllm` runs it")
    return PYTHON
