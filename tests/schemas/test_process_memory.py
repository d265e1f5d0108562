"""Memory that a step has freed is returned to the system."""

import subprocess
import sys

import pytest

from rollcall.schemas.process_memory import MUCH_BYTES

SCRIPT = """
import os, sys
import torch
from rollcall.schemas.process_memory import return_large_blocks

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

return_large_blocks(int(sys.argv[1]))
for megabytes in (8, 16, 31):
    torch.ones(megabytes << 18)  # glibc's bound rises to what was freed
blocks = [torch.ones(2 << 18) for _ in range(64)]
before = held()
del blocks[::2]
print(before - held())
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_freed_blocks_of_two_megabytes_are_returned_to_the_system() -> None:
    assert given_back(MUCH_BYTES) > 60_000_000


def test_a_small_model_keeps_its_heap() -> None:
    assert given_back(MUCH_BYTES - 1) < 10_000_000


def given_back(weights_bytes: int) -> int:
    words = [sys.executable, "-c", SCRIPT, str(weights_bytes)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
