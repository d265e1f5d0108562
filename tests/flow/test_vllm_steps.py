"""The demo's policy is trained through vLLM: its servers in an environment of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs.recipe import load_recipe
from rollcall.schemas.messages import (
    Event,
    ModelAnswered,
    PolicyVersion,
    ScoredTrajectory,
    TrainStep,
)
from rollcall.schemas.packed import ids_of
from tests.support.command_line import ROOT, addresses, rollcall
from tests.support.crew import everything, workers_of
from tests.support.processes_left import running
from tests.support.vllm_environment import vllm_python
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.vllm]
STEPS = 20
PATIENCE_S = 840
"""A start of vLLM takes most of a minute on idle cores, and several where others want them."""


def demo(steps: int) -> str:
    """The demo's recipe, cut short."""
    _, text = load_recipe("lake-any-start")
    for found, put in (
        ("steps = 120", f"steps = {steps}"),
        ("[1_000_000, 1_000_128]", "[1_000_000, 1_000_032]"),
    ):
        assert text.count(found) == 1
        text = text.replace(found, put)
    return text


@pytest.mark.timeout(PATIENCE_S + 60)
def test_demo_takes_twenty_steps_through_vllm_and_leaves_nothing_behind(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given the demo, with model servers that live where vLLM does
    python = vllm_python("20 steps of the demo")
    cluster = make_cluster()
    (tmp_path / "demo.toml").write_text(demo(STEPS))
    summary, log = tmp_path / "summary.json", tmp_path / "run.log"
    before = vllm_processes()

    # When it is run to its end
    with log.open("wb") as out:
        conductor = subprocess.Popen(
            [sys.executable, "-m", "rollcall.compose.cli", "run", str(tmp_path / "demo.toml"),
             "--summary", str(summary)],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, **addresses(cluster), "ROLLCALL_MODELS__ENGINE": "vllm",
                 "ROLLCALL_MODELS__PYTHON": str(python)},
        )  # fmt: skip
        try:
            until(lambda: conductor.poll() is not None, PATIENCE_S, lambda: told(cluster, log))
        finally:
            conductor.terminate()
            conductor.wait(60)
    assert conductor.returncode == 0, told(cluster, log)

    # Then all steps were trained on answers of vLLM, under weights that came while it answered
    result: dict[str, Any] = orjson.loads(summary.read_bytes())
    assert result["steps"] == STEPS
    assert [version for version, _ in result["held_out_curve"]][-1] == STEPS
    assert_trained_on_vllm(cluster)
    verified = rollcall("verify", cwd=tmp_path, **addresses(cluster))
    assert verified.returncode == 0, verified.stdout + verified.stderr

    # and all its processes are gone
    assert workers_of(conductor.pid) == {}
    until(lambda: vllm_processes() <= before, 30, lambda: f"{vllm_processes() - before} live")


def told(cluster: Cluster, log: Path) -> str:
    """The last words of the run, and of its model server."""
    words = [log, *cluster.settings.state().glob("runs/*/logs/models-*.log")]
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in words)


def vllm_processes() -> set[int]:
    return {pid for word in ("VLLM::EngineCore", "VLLM::Worker") for pid in running(word)}


def assert_trained_on_vllm(cluster: Cluster) -> None:
    """Every step's rollouts were sampled by vLLM, and some of them by several versions."""
    bodies = [event.body for event in read(cluster, cluster.topics.events, Event)]
    answers = [body for body in bodies if isinstance(body, ModelAnswered)]
    assert {answer.engine for answer in answers} == {"vllm"}
    versions = {each.version for each in read(cluster, cluster.topics.versions, PolicyVersion)}
    assert versions == set(range(STEPS + 1))
    steps = {each.step: each for each in read(cluster, cluster.topics.train_steps, TrainStep)}
    assert len(steps) == STEPS
    trained = {one.rollout_id for step in steps.values() for one in step.trajectories}
    sampled = [
        {version for sequence in scored.trajectory.sequences or () for version in of(sequence)}
        for scored in read(cluster, cluster.topics.scored, ScoredTrajectory)
        if scored.trajectory.rollout_id in trained
    ]
    assert len(set[int]().union(*sampled)) > STEPS // 2
    assert max(map(len, sampled)) > 1, "no rollout went on under new weights"


def of(sequence: Any) -> set[int]:
    """The policy versions of the sampled tokens."""
    return set(ids_of(sequence.versions).tolist()) - {-1}


def read(cluster: Cluster, topic: str, kind: type) -> list[Any]:
    return [cluster.codec.decode(record.value, kind) for record in everything(cluster, topic)]
