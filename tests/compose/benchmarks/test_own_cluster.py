"""A benchmark that is ended from outside leaves neither broker nor registry."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rollcall.compose.processes import module, started
from rollcall.compose.services import embedded
from tests.support.broker import users_cache
from tests.support.command_line import ROOT
from tests.support.waiting import until


def services_in(folder: Path) -> embedded.Endpoints | None:
    """The services that a benchmark has started, once both are alive."""
    found = map(embedded.endpoints, folder.glob("rollcall-bench-*"))
    return next(filter(None, found), None)


def ignoring_ctrl_c() -> None:
    """Ignore Ctrl-C, like a background job of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_broker_and_registry_of_a_benchmark_end_with_it(tmp_path: Path, ended_by: int) -> None:
    bench = subprocess.Popen(
        module("rollcall.compose.cli", "bench", "scan_records_per_s"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "ROLLCALL_CACHE_DIR": str(users_cache())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=ignoring_ctrl_c,
    )
    try:
        until(lambda: services_in(tmp_path) is not None, 90, lambda: str(bench.poll()))
        services = services_in(tmp_path)
        assert services is not None
        bench.send_signal(ended_by)
        assert bench.wait(60) != 0
    finally:
        bench.kill()

    both = services.kafka_pid, services.registry_pid
    until(lambda: not any(map(started, both)), 10, lambda: f"of {both} one lives on")
    assert ended_by == signal.SIGKILL or not list(tmp_path.glob("rollcall-bench-*"))
