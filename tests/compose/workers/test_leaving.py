"""A worker that leaves with live agent processes: they end first, before any other wait."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.chaos.victims import agents_below
from rollcall.compose.processes import wait_until
from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.loop.loop import Loop
from rollcall.producers.publisher import Publisher
from rollcall.schemas.messages import EnvironmentStepped, Limits, RolloutRequest, Task
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX
from tests.support.waiting import until

FUNCTIONS = Path(__file__).parents[2] / "support" / "hosted_functions.py"
LIVE = 3


class AwayBroker:
    """A publisher whose broker does not answer; its flush records whether agents are left."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.left: list[bool] = []

    def poll(self) -> None:
        self.publisher.poll()

    def waiting(self) -> int:
        return 1

    def flush(self, timeout_s: float) -> int:
        assert timeout_s > 0
        self.left.append(not wait_until(lambda: children_of_agents() == [], 10))
        return 1


def children_of_agents() -> list[int]:
    return agents_below(os.getpid())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    """A cluster without a model server, so that every model call waits."""
    settings = Settings(prefix=PREFIX, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    cluster = MemoryCluster(settings=settings)
    factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings, watched=False)
    cluster.log.crew = [factory.agents("agents-1")]
    factory.watched = True  # with threads
    cluster.log.crew = [*cluster.log.crew, factory.environments("environments-1")]
    yield cluster
    for loop in cluster.log.crew:
        loop.stop(0.0)


def asked(cluster: MemoryCluster) -> Loop:
    """The worker in which so many agents live, all of whom have asked."""
    config = {"agent": "python", "function": f"{FUNCTIONS}:sequential"}
    for number in range(LIVE):
        cluster.ask(
            RolloutRequest(
                f"r{number}",
                Task(prompt="Talk."),
                agent="hosted",
                agent_config=json.dumps(config),
                policy_id=POLICY,
                limits=Limits(max_turns=20),
            )
        )

    def all_asked() -> bool:
        cluster.log.work()
        return len(cluster.events(EnvironmentStepped)) == LIVE

    until(all_asked, 60, lambda: f"{len(cluster.events(EnvironmentStepped))} have asked")
    assert len(children_of_agents()) == LIVE
    agents, worker = cluster.log.crew
    cluster.log.crew = [agents]
    return worker


@pytest.mark.parametrize("patient", [False, True], ids=["at once", "drained"])
def test_agents_end_before_their_worker_waits_for_a_missing_broker(
    cluster: MemoryCluster, patient: bool
) -> None:
    worker = asked(cluster)
    away = AwayBroker(worker.publishers[0])
    worker.publishers = [away]  # type: ignore[list-item]

    worker.stop(1.0, patient=lambda: patient)

    assert away.left[0] is False
