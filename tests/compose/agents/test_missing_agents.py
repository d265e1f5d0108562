"""A rollout with a missing agent ends with one line and without retries."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollcall.compose.settings import Settings
from rollcall.schemas.messages import EnvironmentStep, RolloutRequest, Task
from tests.support.memory_cluster import POLICY, MemoryCluster
from tests.support.rig import PREFIX


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"agent": "mini-swe-agent"}, "run `rollcall agents install mini-swe-agent`"),
        ({"agent": "no-such"}, "unknown agent 'no-such'"),
        ({"agent": "python", "function": "gone.py:f"}, "FileNotFoundError"),
    ],
)
def test_rollout_with_a_missing_agent_fails_at_once(
    tmp_path: Path, config: Mapping[str, str], words: str
) -> None:
    settings = Settings(prefix=PREFIX, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    cluster = MemoryCluster(settings=settings)
    cluster.hire(lambda call: "nobody asks")
    cluster.ask(
        RolloutRequest(
            "r", Task(prompt="p"), agent="hosted", agent_config=json.dumps(config), policy_id=POLICY
        )
    )
    until = time.monotonic() + 30

    while not cluster.trajectories() and time.monotonic() < until:
        cluster.log.work()
    for loop in cluster.log.crew:
        loop.stop(0.0)

    (trajectory,) = cluster.trajectories()
    assert (trajectory.status, trajectory.attempt) == ("failed", 1)
    assert trajectory.code == "agent_missing"
    assert "agent_missing" not in trajectory.reason  # it would be said twice
    assert words in trajectory.reason
    resets = cluster.read(cluster.topics.steps, EnvironmentStep)
    assert [step.kind for step in resets if step.kind != "close"] == ["reset"]
