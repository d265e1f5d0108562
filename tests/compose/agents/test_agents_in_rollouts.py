"""Third-party agents as rollouts on the in-memory log, with a shell and a real gateway."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.audit.audit import audit
from rollcall.inference.engine import Engine
from rollcall.inference.policy_dir import make_policy
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.messages import (
    Limits,
    RolloutRequest,
    Sampling,
    ScoredTrajectory,
    Task,
    Trajectory,
)
from tests.support import agent_policies
from tests.support.hosted_rollout import model_calls_of
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.policies import CHARACTERS, CONFIGS, version_of
from tests.support.rig import PREFIX

pytestmark = pytest.mark.agents

PATIENCE_S = 120.0
SHELL = agent_policies.SHELL | {"check": "grep 2 answer"}

CALLS = {"mini-swe-agent": 2, "openai-agents": 3, "smolagents": 2}


class Town:
    """All groups on one log; the worker of environments can be replaced."""

    def __init__(self, state: Path, engine: Engine) -> None:
        settings = Settings(prefix=PREFIX, state_dir=state)
        self.cluster = MemoryCluster(settings=settings)
        log, codec, topics = self.cluster.log, self.cluster.codec, self.cluster.topics
        self.factory = WorkerFactory(log, codec, topics, settings, watched=False)
        self.cluster.log.crew = [
            self.factory.agents("agents-1"),
            self.factory.models("models-1", engine),
            self.factory.environments("environments-1"),
            self.factory.rewards("rewards-1"),
        ]

    def until_called(self, times: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while len(model_calls_of(self.cluster, "r")) < times:
            assert time.monotonic() < until
            self.cluster.log.work()

    def replace_environments(self) -> None:
        agents, models, environments, rewards = self.cluster.log.crew
        environments.stop(0.0)
        again = self.factory.environments("environments-2")
        self.cluster.log.crew = [agents, models, again, rewards]

    def leave(self) -> None:
        for loop in self.cluster.log.crew:
            loop.stop(0.0)

    def ended(self) -> Trajectory:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.cluster.trajectories():
                self.cluster.finish()
                return self.cluster.trajectories()[0]
            self.cluster.log.work()
        pytest.fail(f"it has not ended in {PATIENCE_S:g} s")

    def judged(self) -> ScoredTrajectory:
        """The scored record of the rollout that has ended."""
        self.cluster.finish()
        [scored] = self.cluster.read(self.cluster.topics.scored, ScoredTrajectory)
        return scored


@pytest.fixture
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    speak = agent_policies.policies()[request.getfixturevalue("agent")]
    town = Town(tmp_path, ScriptedEngine(POLICY, text_script(speak, "speak"), render=added_by))
    yield town
    town.leave()


@pytest.mark.parametrize("agent", CALLS)
@pytest.mark.parametrize("lost_at", [None, 1, 2])
def test_agent_solves_task_without_repeating_calls_after_worker_loss(
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


@pytest.mark.parametrize("agent", CALLS)
def test_random_policy_fails_with_zero_reward_through_any_agent(agent: str, tmp_path: Path) -> None:
    # Given a policy of random weights whose template has a form for tools
    template = CHARACTERS | {"tools": "hermes"}
    config = CONFIGS["qwen2"] | {"max_position_embeddings": 40_000}
    policy = make_policy(
        tmp_path / "policy", config=config, tokens="characters", template=template, seed=4
    )
    town = Town(tmp_path / "state", TransformersEngine(POLICY, policy))
    version = version_of(policy, 0, policy_id=POLICY)  # no step has made it
    town.cluster.write(town.cluster.topics.versions, POLICY, version)
    limits = Limits(max_turns=2, step_timeout_s=PATIENCE_S, call_timeout_s=PATIENCE_S)

    # When an agent follows its answers
    task = Task("shell", json.dumps(SHELL), prompt=agent_policies.PROMPT)
    config_json = json.dumps({"agent": agent})
    town.cluster.ask(
        RolloutRequest(
            "r",
            task,
            "hosted",
            config_json,
            policy_id=POLICY,
            limits=limits,
            sampling=Sampling(max_tokens=12),
        )
    )
    try:
        trajectory, scored = town.ended(), town.judged()
        breaches = audit(town.cluster, drained=True).breaches
    finally:
        town.leave()

    # Then all of it was sampled from its weights, and it has earned nothing
    assert trajectory.model_calls >= 1, trajectory.reason
    sampled = [s for s in trajectory.sequences or () if 1 in s.loss_mask]
    assert sampled
    assert scored.total in (0.0, None)
    assert (trajectory.status, trajectory.code) in (("finished", ""), ("failed", "agent_exit"))
    assert (scored.total is None) == (trajectory.status == "failed"), trajectory.reason
    assert breaches == []
