"""Agents as others have written them, as rollouts on the in-memory log: a shell, a real gateway."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.settings import Settings
from compose.workers.build import Workshop
from consumers.audit.audit import audit
from inference.scripted import ScriptedEngine
from inference.text_script import added_by, text_script
from schemas.messages import Limits, RolloutRequest, Task, Trajectory
from tests.support import agent_policies
from tests.support.hosted_rollout import model_calls_of
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX

pytestmark = pytest.mark.agents

PATIENCE_S = 120.0
SHELL = agent_policies.SHELL | {"check": "grep 2 answer"}

CALLS = {"mini-swe-agent": 2, "openai-agents": 3, "smolagents": 2}


class Town:
    """All groups on one log; the worker of environments can be replaced."""

    def __init__(self, state: Path, speak: Callable[[str], str]) -> None:
        settings = Settings(prefix=PREFIX, state_dir=state)
        self.cluster = MemoryCluster(settings=settings)
        log, codec, topics = self.cluster.log, self.cluster.codec, self.cluster.topics
        self.shop = Workshop(log, codec, topics, settings, watched=False)
        engine = ScriptedEngine(POLICY, text_script(speak, "speak"), render=added_by)
        self.cluster.log.crew = [
            self.shop.agents("agents-1"),
            self.shop.models("models-1", engine),
            self.shop.environments("environments-1"),
            self.shop.rewards("rewards-1"),
        ]

    def until_called(self, times: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while len(model_calls_of(self.cluster, "r")) < times:
            assert time.monotonic() < until
            self.cluster.log.work()

    def replace_environments(self) -> None:
        agents, models, environments, rewards = self.cluster.log.crew
        environments.stop(0.0)
        again = self.shop.environments("environments-2")
        self.cluster.log.crew = [agents, models, again, rewards]

    def ended(self) -> Trajectory:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.cluster.trajectories():
                self.cluster.finish()
                return self.cluster.trajectories()[0]
            self.cluster.log.work()
        pytest.fail(f"it has not ended in {PATIENCE_S:g} s")


@pytest.fixture
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path, agent_policies.policies()[request.getfixturevalue("agent")])
    yield town
    for loop in town.cluster.log.crew:
        loop.stop(0.0)


@pytest.mark.parametrize("agent", CALLS)
@pytest.mark.parametrize("lost_at", [None, 1, 2])
def test_an_agent_solves_a_task_and_no_call_is_repeated_where_its_worker_is_lost(
    town: Town, agent: str, lost_at: int | None
) -> None:
    config = json.dumps({"agent": agent})
    town.cluster.ask(
        RolloutRequest(
            "r",
            Task("shell", json.dumps(SHELL), prompt=agent_policies.PROMPT),
            agent="hosted",
            agent_config=config,
            policy_id=POLICY,
            limits=Limits(max_turns=10, step_timeout_s=PATIENCE_S),
        )
    )
    if lost_at:
        town.until_called(lost_at)
        town.replace_environments()

    trajectory = town.ended()

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert sum(step.reward for step in trajectory.steps or ()) == 1.0
    actions = [step.action for step in trajectory.steps or () if step.session == "main"]
    assert actions[-2:] == agent_policies.commands(0)
    assert len(model_calls_of(town.cluster, "r")) == CALLS[agent]
    report = audit(town.cluster, drained=True)
    assert (report.breaches, report.repeated) == ([], 0)
