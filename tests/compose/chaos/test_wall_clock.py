"""The clock of a worker that chaos sets back, as the worker reads it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollcall.compose.chaos.faults import CLOCK, KINDS, SET_BACK_S, WORKERS
from rollcall.compose.chaos.wall_clock import WallClock

READER = """
import sys, time
from rollcall.consumers.loop.clock import steady_wall
at_start = steady_wall()
for _ in sys.stdin:
    print(time.time(), time.time_ns() / 1e9, at_start(), flush=True)
"""


def test_process_reads_the_clock_set_for_it(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clocks", "agents-1")
    clock.set(-SET_BACK_S)
    environment = {**os.environ, **clock.environment(os.environ.get("PYTHONPATH", ""))}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", READER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def read() -> list[float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("now\n")
            process.stdin.flush()
            now = time.time()
            return [float(each) - now for each in process.stdout.readline().split()]

        assert read() == pytest.approx([-SET_BACK_S] * 3, abs=60)
        clock.set(0.0)
        assert read() == pytest.approx([0.0, 0.0, -SET_BACK_S], abs=60)
        process.stdin.close()


def test_clocks_of_other_workers_stay_unchanged(tmp_path: Path) -> None:
    clocks = [WallClock(tmp_path / "clocks", name) for name in ("a-1", "a-2")]
    clocks[0].set(-SET_BACK_S)

    assert clocks[0].path.read_bytes() != clocks[1].path.read_bytes()
    assert time.time() > 1e9


def test_every_worker_may_restart_with_its_clock_set_back() -> None:
    assert all(CLOCK in KINDS[role] for role in (*WORKERS, "training"))
