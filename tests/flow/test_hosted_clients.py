"""An agent that uses all features of vendor clients, as a rollout of a whole system."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import Settings
from rollcall.compose.workers.served_policy import scripted_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.protocols import Log
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import Limits, RolloutRequest, Sampling, Task, Trajectory
from rollcall.schemas.topics import Topics
from tests.support.crew import publish
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX
from tests.support.vendor_scenarios import WHOLE

AGENT = Path(__file__).parents[1] / "support" / "vendor_clients.py"
CONFIG = {
    "agent": "python",
    "function": f"{AGENT}:hosted",
    "scenarios": {kind: list(scenarios) for kind, scenarios in WHOLE.items()},
}
REQUEST = RolloutRequest(
    "r-1",
    Task(),
    agent="hosted",
    agent_config=json.dumps(CONFIG),
    policy_id=POLICY,
    sampling=Sampling(max_tokens=256),
    limits=Limits(max_turns=200, step_timeout_s=150.0),
)


def crew_of(factory: WorkerFactory) -> list[Loop]:
    engine = scripted_engine(POLICY, "tests.support.vendor_scenarios:speak")
    return [
        factory.agents("agents-1"),
        factory.models("models-1", engine),
        factory.environments("environments-1"),
    ]


def ended(crew: Sequence[Loop], found: Callable[[], Trajectory | None]) -> Trajectory:
    """Let all workers take turns until the rollout has ended."""
    deadline = time.monotonic() + 150
    try:
        while (trajectory := found()) is None:
            assert time.monotonic() < deadline
            for _ in range(20):
                for loop in crew:
                    loop.turn(0.001)
        return trajectory
    finally:
        for loop in crew:
            loop.stop(1.0)


def newest(log: Log, codec: Codec, topics: Topics) -> Trajectory | None:
    records = list(read_all(log, [topics.trajectories]))
    return codec.decode(records[-1].value, Trajectory) if records else None


def assert_all_was_as_it_should(trajectory: Trajectory) -> None:
    assert trajectory.status == "finished", trajectory.reason
    found = json.loads(trajectory.result)
    for kind, expected in WHOLE.items():
        assert found[kind] == expected
    assert trajectory.attempt == 1


def test_vendor_clients_work_on_the_in_memory_log(tmp_path: Path) -> None:
    settings = Settings(prefix=PREFIX, state_dir=tmp_path, cache_dir=tmp_path / "cache")
    cluster = MemoryCluster(settings=settings)
    crew = crew_of(
        WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings, watched=False)
    )
    cluster.ask(REQUEST)

    trajectory = ended(crew, lambda: newest(cluster.log, cluster.codec, cluster.topics))

    assert_all_was_as_it_should(trajectory)


@pytest.mark.thorough
@pytest.mark.broker
def test_vendor_clients_work_through_the_real_broker(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(POLICY)
    factory = WorkerFactory(
        cluster.log, cluster.codec, cluster.topics, cluster.settings, watched=False
    )
    crew = crew_of(factory)
    publish(cluster, [REQUEST])

    trajectory = ended(crew, lambda: newest(cluster.log, cluster.codec, cluster.topics))

    assert_all_was_as_it_should(trajectory)
