"""The workload's hosted agents on the in-memory log, in processes that are killed meanwhile."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.hosted_figures import HostedFigures, figures_of
from rollcall.compose.chaos.victims import agents_below
from rollcall.compose.settings import Settings
from rollcall.consumers.audit.audit import audit
from rollcall.schemas.messages import Limits, ModelCall, RolloutRequest
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX
from tests.support.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    settings = Settings(prefix=PREFIX, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    cluster = MemoryCluster(settings=settings)
    cluster.hire(lambda call: workload.WORDS[call.seed % len(workload.WORDS)])
    yield cluster
    for loop in cluster.log.crew:
        loop.stop(0.0)


def of_each_function() -> list[RolloutRequest]:
    """One request for each, as the workload asks for it but with time to end."""
    found: dict[str, RolloutRequest] = {}
    for number in range(2000):
        request = workload.request(7, number)
        config = json.loads(request.agent_config or "{}")
        if config.get("agent") == "python":
            found.setdefault(config["function"].rpartition(":")[2], request)
    assert found.keys() == set(workload.FUNCTIONS)
    limits = Limits(max_turns=16)
    return [replace(each, policy_id=POLICY, limits=limits) for each in found.values()]


def lived(cluster: MemoryCluster, logs: Path, *, killing: bool) -> HostedFigures:
    """Let all workers run until all rollouts have ended; kill each process once after an answer."""
    requests, killed = of_each_function(), set[int]()
    for request in requests:
        cluster.ask(request)

    def ended() -> bool:
        cluster.log.work()
        for pid in agents_below(os.getpid()) if killing and answered(cluster) else []:
            if pid not in killed and len(killed) < len(requests):
                killed.add(pid)
                os.kill(pid, 9)
        return len(cluster.trajectories()) >= len(requests)

    until(ended, 60, lambda: f"{len(cluster.trajectories())} have ended")
    cluster.finish()
    assert {each.status for each in cluster.trajectories()} == {"finished"}
    report = audit(cluster, drained=True)
    assert (report.breaches, report.repeated) == ([], 0)
    assert len(killed) == len(requests) * killing
    return figures_of(cluster, POLICY, logs)


def answered(cluster: MemoryCluster) -> bool:
    return len(cluster.read(cluster.topics.calls(POLICY), ModelCall)) > len(workload.FUNCTIONS)


@pytest.mark.parametrize("killing", [False, True])
def test_no_answered_call_is_repeated_after_process_kills(
    cluster: MemoryCluster, tmp_path: Path, killing: bool
) -> None:
    found = lived(cluster, tmp_path, killing=killing)

    assert found.rollouts == len(workload.FUNCTIONS)
    assert found.asked_again == 0
    assert (found.diverged > 0) <= killing
