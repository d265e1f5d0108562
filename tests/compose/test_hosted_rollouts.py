"""Hosted rollouts on the in-memory log, with the gateway and the processes of real workers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.tables.query import open_tables
from rollcall.schemas.messages import (
    Limits,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    Trajectory,
)
from tests.support.command_line import call
from tests.support.hosted_rollout import model_calls_of
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster, hired

FUNCTIONS = Path(__file__).parents[1] / "support" / "hosted_functions.py"
PATIENCE_S = 60.0


def by_seed(call: ModelCall) -> str:
    return f"go {(call.seed + sum(call.prefix_ids or b'')) % 1000}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with hired(tmp_path, by_seed) as cluster:
        yield cluster


def requested(rollout_id: str, function: str, **fields: Any) -> RolloutRequest:
    config = {"agent": "python", "function": f"{FUNCTIONS}:{function}", "catch_up_s": 2.0}
    task = Task(CORRIDOR, seed=7, prompt="Find the door.")
    given = {"task": task, "policy_id": POLICY, "limits": Limits(max_turns=20)}
    return RolloutRequest(
        rollout_id, agent="hosted", agent_config=json.dumps(config), **(given | fields)
    )


def ended(cluster: MemoryCluster, rollout_id: str) -> Trajectory:
    """Let all workers run until the rollout has ended."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for each in cluster.trajectories():
            if each.rollout_id == rollout_id:
                cluster.finish()
                return each
        cluster.log.work()
    pytest.fail(f"{rollout_id} has not ended in {PATIENCE_S:g} s")


def clean(cluster: MemoryCluster) -> bool:
    report = audit(cluster, drained=True)
    assert report.breaches == []
    return report.repeated == 0


def test_hosted_process_with_a_vendor_client_finishes_its_task(cluster: MemoryCluster) -> None:
    cluster.ask(requested("r", "sequential"))

    trajectory = ended(cluster, "r")

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    [sequence] = trajectory.sequences or ()
    said = [message.content for message in sequence.messages if message.role == "assistant"]
    assert json.loads(trajectory.result) == said
    steps = [step for step in trajectory.steps or () if step.session == "main"]
    assert [step.text for step in steps] == ["corridor 7", "door 1", "door 2", "door 3"]
    assert steps[-1].reward == 1.0
    assert clean(cluster)


def test_parallel_callers_form_one_rollout_without_repeated_work(
    cluster: MemoryCluster,
) -> None:
    cluster.ask(requested("r", "parallel", task=Task(prompt="Talk.")))

    trajectory = ended(cluster, "r")

    assert (trajectory.status, trajectory.model_calls) == ("finished", 15), trajectory.reason
    assert clean(cluster)


@pytest.mark.parametrize("turn", [0, 2])
def test_fork_resumes_from_a_turn_with_its_own_process(turn: int, cluster: MemoryCluster) -> None:
    cluster.ask(requested("parent", "sequential"))
    then = ended(cluster, "parent")

    call(cluster, "fork", "parent", f"--at={turn}", "--seed=parent")
    cluster.finish()
    [request] = [r for r in cluster.read(cluster.topics.requests, RolloutRequest)
                 if r.parent_rollout_id == "parent"]  # fmt: skip
    now = ended(cluster, request.rollout_id)

    assert now.status == "finished", now.reason
    assert now.model_calls == then.model_calls - turn
    assert json.loads(now.result)[:turn] == json.loads(then.result)[:turn]
    assert len(model_calls_of(cluster, request.rollout_id)) == 3 - turn
    assert clean(cluster)


def test_rollout_page_shows_the_agent_requests_as_a_conversation(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.ask(requested("r", "sequential"))
    first = json.loads(ended(cluster, "r").result)[0]
    capsys.readouterr()

    call(cluster, "trajectory", "r")

    told = [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()]
    assert (
        told.index("user: corridor 7") < told.index(f"acts: {first}") < told.index("user: door 1")
    )
    assert "ended with code 0" in told


def test_hosted_rollout_is_exported_and_rescored_like_any_other(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.ask(requested("r", "sequential"))
    said = json.loads(ended(cluster, "r").result)

    call(cluster, "export", "--parquet", str(tmp_path / "out"))
    call(cluster, "rescore", "--scorer", "environment_return*2")

    with open_tables([tmp_path / "out"]) as tables:
        sql = "select content from turns where role = 'assistant' order by line"
        assert [content for (content,) in tables.ask(sql).rows] == said
    scores = cluster.read(cluster.topics.scored, ScoredTrajectory)
    assert sorted((each.scoring_id, each.total) for each in scores) == [
        ("default", 1.0),
        ("rescore-environment_return-2", 2.0),
    ]
