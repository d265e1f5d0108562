"""What a step has given back is not kept by the process."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import torch
from schemas.process_memory import return_large_blocks

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "returned":
    return_large_blocks()
for megabytes in (8, 16, 31):
    torch.ones(megabytes << 18)  # glibc's bound rises to what was freed
blocks = [torch.ones(2 << 18) for _ in range(64)]
before = held()
del blocks[::2]
print(before - held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_blocks_of_two_megabytes_go_back_though_others_lie_between_them() -> None:
    def given_back(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert given_back("returned") > 60_000_000
    assert given_back("kept") < 10_000_000
