"""A rollout too heavy for the log, through a real broker: heavy parts are in the object store."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import ObjectSettings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, user
from rollcall.consumers.agents.effects import Task as Given
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.rollouts.fork_request import fork_request, parent_of
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import EnvironmentStep, RolloutRequest, Task, Trajectory
from tests.support.command_line import call
from tests.support.crew import Seen, everything, publish
from tests.support.memory_cluster import POLICY

pytestmark = pytest.mark.broker

HEAVY = 1_000_000
RECORD_BYTES = 1_000_000
"""What a topic takes at most."""
PATIENCE_S = 120.0


def hauls(task: Given) -> Agent:
    """Acts three times, asks, and acts once more, each time at length."""
    yield Reset()
    for number in "123":
        yield Step(number * HEAVY)
    yield CallModel([user("is that all?")])
    seen = yield Step("4" * HEAVY)
    yield CallModel([user("and now?")])
    yield Finish(seen.text[:1])


class Quarry:
    """Shows the action that it receives."""

    replayable = True

    def open(self, seed: int) -> Observation:
        return Observation("a quarry")

    def step(self, action: str) -> Observation:
        return Observation(action, 1.0)

    def close(self) -> None:
        """There is nothing to release."""


def turn(crew: Sequence[Loop], until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        for _ in range(5):
            for loop in crew:
                loop.turn(0.001)


def test_heavy_rollout_passes_a_real_broker_and_every_later_stage(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    objects = f"{tmp_path}/objects"
    cluster = make_cluster(POLICY, objects=ObjectSettings(url=objects))
    log, codec, topics = cluster.log, cluster.codec, cluster.topics
    factory = WorkerFactory(log, codec, topics, cluster.settings, watched=False)

    # Given a rollout whose environment is lost after three megabytes of actions
    task = Task(f"{__name__}:Quarry")
    publish(cluster, [RolloutRequest("r", task, f"{__name__}:hauls", policy_id=POLICY)])
    agents, first = factory.agents("agents-1"), factory.environments("environments-1")
    asked = log.reader([topics.calls(POLICY)])
    turn([agents, first], lambda: bool(asked.poll(0.0)))
    first.stop(1.0)
    crew = [
        agents,
        factory.environments("environments-2"),
        factory.models("models-1", ScriptedEngine(POLICY, lambda call: "no")),
        factory.rewards("rewards-1"),
    ]
    seen = Seen(cluster)

    # When it has been scored, and forked where it had to be lived again
    turn(crew, lambda: seen.count() == 1)
    parent = parent_of(cluster, "r", watched_world(cluster.settings.agents.program_timeout_s))
    publish(cluster, [fork_request(parent, 1)])
    turn(crew, lambda: seen.count() == 2)
    for loop in crew:
        loop.stop(1.0)

    # Then nothing in the log is heavy, and nothing that was read of it was light
    steps = [
        codec.decode(each.value, EnvironmentStep) for each in everything(cluster, topics.steps)
    ]
    histories = [sum(map(len, each.history)) for each in steps if each.history]
    assert histories == [3 * HEAVY]
    for topic in (topics.steps, topics.events, topics.trajectories, topics.scored):
        assert max(len(record.value) for record in read_all(log, [topic])) < RECORD_BYTES / 10
    whole = [
        codec.decode(each.value, Trajectory) for each in everything(cluster, topics.trajectories)
    ]
    for trajectory in whole:
        assert (trajectory.status, trajectory.result) == ("finished", "4"), trajectory.reason
        texts = [text for step in trajectory.steps or () for text in (step.action, step.text)]
        assert sum(len(text or "") for text in texts) > 8 * HEAVY
    assert [each.total for each in seen.scored.values()] == [4.0, 4.0]

    # And every later reader finds it complete
    assert audit(cluster, drained=True).breaches == []
    call(cluster, "export", "--parquet", str(tmp_path / "out"), "--rate", "0")
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("turns/*/*.parquet")]
    shown = [text for table in tables for text in table["observation"].to_pylist() if text]
    assert sum(map(len, shown)) == 2 * (4 * HEAVY + len("a quarry"))
