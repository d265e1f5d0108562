"""Third-party agents solve a task in a directory with our scripted policies."""

import json
import time
from pathlib import Path

import pytest

from rollcall.compose.settings import Settings
from rollcall.compose.workers.served_policy import scripted_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.producers.submit import requests_of
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.sandbox.tasks.task_names import request_of
from rollcall.schemas.messages import RolloutRequest, Task, Trajectory
from rollcall.schemas.objects import ObjectStore
from tests.support.engines import has, left_out
from tests.support.hosted_rollout import model_calls_of
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX
from tests.support.task_directories import write_task

pytestmark = pytest.mark.agents

PATIENCE_S = 120.0
CHECK = "python3 -c 'import sums; assert sums.add(2, 3) == 5'"


def played(agent: str, script: str, tmp_path: Path, where: str = "") -> tuple[Trajectory, int]:
    """One rollout to its end, and how many calls it took; `where` the agent lives."""
    task = read_task(write_task(tmp_path / "sums"))
    box = "bubblewrap" if where else "local"
    line = request_of(task, box=box, agent=agent, max_tokens=10_000)
    line["rollout_id"] = "r"
    line["agent_config"] |= {"box": where} if where else {}
    line["task"]["environment_config"]["check"] = CHECK
    line["limits"]["max_turns"] = 4
    defaults = RolloutRequest("", Task(), policy_id=POLICY)
    (request,) = requests_of([json.dumps(line)], lambda _: None, defaults=defaults)

    settings = Settings(prefix=PREFIX, state_dir=tmp_path / "state")
    cluster = MemoryCluster(settings=settings, objects=ObjectStore(str(tmp_path / "objects")))
    factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings, watched=False)
    engine = scripted_engine(POLICY, script, task.directory)
    cluster.log.crew = [factory.agents("a"), factory.models("m", engine), factory.environments("e")]
    try:
        cluster.ask(request)
        until = time.monotonic() + PATIENCE_S
        while not cluster.trajectories():
            assert time.monotonic() < until
            cluster.log.work()
        return cluster.trajectories()[0], len(model_calls_of(cluster, "r"))
    finally:
        for loop in cluster.log.crew:
            loop.stop(0.0)


def reward(trajectory: Trajectory) -> float:
    return sum(step.reward for step in trajectory.steps or ())


@pytest.mark.parametrize(
    ("agent", "calls"), [("mini-swe-agent", 2), ("openai-agents", 3), ("smolagents", 2)]
)
def test_oracle_solves_task_through_any_agent(agent: str, calls: int, tmp_path: Path) -> None:
    trajectory, took = played(agent, "oracle", tmp_path)

    assert (trajectory.status, reward(trajectory), took) == ("finished", 1.0, calls), (
        trajectory.reason
    )


@pytest.mark.parametrize(
    ("agent", "where", "calls"),
    [
        ("mini-swe-agent", "own", 2),
        ("openai-agents", "own", 3),
        ("smolagents", "own", 2),
        ("smolagents", "task", 2),
        ("mini-swe-agent", "task", 2),
    ],
)
def test_oracle_solves_task_through_an_agent_in_a_box(
    agent: str, where: str, calls: int, tmp_path: Path
) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "agents of others in boxes")
    trajectory, took = played(agent, "oracle", tmp_path, where)

    assert (trajectory.status, reward(trajectory), took) == ("finished", 1.0, calls), (
        trajectory.reason
    )
    mains = [step for step in trajectory.steps or () if step.session == "main"]
    assert len(mains) == (2 if where == "task" else 3)
    assert mains[-1].terminated


def test_null_policy_earns_no_reward_and_uses_all_turns(tmp_path: Path) -> None:
    trajectory, took = played("mini-swe-agent", "null", tmp_path)

    assert (reward(trajectory), took) == (0.0, 4), (trajectory.status, trajectory.reason)
