"""A whole training run by its command, on the real broker, while its workers are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.consumers.log.protocols import Reader
from rollcall.schemas.messages import PolicyVersion, RolloutRequest, TrainStep
from tests.support.command_line import ROOT, addresses, rollcall
from tests.support.crew import everything, workers_of
from tests.support.tiny_run import RECIPE
from tests.support.waiting import until

pytestmark = pytest.mark.broker
ROLES = ("training", "models", "agents", "environments", "rewards")


def larger(text: str) -> str:
    return text.replace("steps = 4", "steps = 6").replace(
        "groups_per_step = 2\ngroup_size = 4", "groups_per_step = 12\ngroup_size = 8"
    )


class Steps:
    """The optimiser steps written so far."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.reader: Reader = cluster.log.reader([cluster.topics.train_steps])
        self.found: list[TrainStep] = []

    def reached(self, count: int) -> bool:
        for record in self.reader.poll(0.05):
            self.found.append(self.cluster.codec.decode(record.value, TrainStep))
        return len({step.step for step in self.found}) >= count


@pytest.mark.timeout(400)
def test_run_finishes_normally_although_every_worker_is_killed(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given a run under way
    cluster = make_cluster()
    (tmp_path / "tiny.toml").write_text(larger(RECIPE))
    summary = tmp_path / "summary.json"
    log = (tmp_path / "run.log").open("wb")
    conductor = subprocess.Popen(
        [sys.executable, "-m", "rollcall.compose.cli", "run", str(tmp_path / "tiny.toml"),
         "--summary", str(summary)],
        cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        env={**os.environ, **cluster.environment(), "ROLLCALL_PREFIX": cluster.settings.prefix},
    )  # fmt: skip
    steps = Steps(cluster)

    def words() -> str:
        return (tmp_path / "run.log").read_text()[-1500:]

    # When one worker after the other is killed, each after one more step
    try:
        for number, role in enumerate(ROLES, 1):
            until(lambda n=number: steps.reached(n) or conductor.poll() is not None, 120, words)
            assert conductor.poll() is None, words()
            os.kill(workers_of(conductor.pid)[f"{role}-1"], signal.SIGKILL)
        assert "libtorch" not in Path(f"/proc/{conductor.pid}/maps").read_text()
        until(lambda: conductor.poll() is not None, 150, words)
    finally:
        conductor.terminate()
        conductor.wait(60)
        log.close()

    # Then the run has all its steps, each version once, and no rollout is lost or doubled
    assert conductor.returncode == 0, words()
    assert steps.reached(6)
    assert_each_once(cluster, steps.found)
    result: dict[str, Any] = orjson.loads(summary.read_bytes())
    assert result["steps"] == 6
    requests = {
        request.rollout_id: request
        for record in everything(cluster, cluster.topics.requests)
        for request in [cluster.codec.decode(record.value, RolloutRequest)]
    }
    done = [request for request in requests.values() if request.purpose == "evaluate"]
    assert len(done) >= 2 * 6
    assert workers_of(conductor.pid) == {}
    assert_read_again_as_it_was(cluster, result, tmp_path)

    assert_trains_again_to_the_same_weights(cluster, result)


def assert_trains_again_to_the_same_weights(cluster: Cluster, result: dict[str, Any]) -> None:
    """The files that killed trainers left are sufficient."""
    folder = run_folder.find(cluster.settings.state(), result["run_id"])
    threads = cluster.settings.training.threads
    report = retrain_and_tell(
        cluster, folder.trained(), (1, 6), version=None, threads=threads, tell=print
    )
    assert [step["identical"] for step in report["steps"]] == [True] * 6


def assert_read_again_as_it_was(cluster: Cluster, result: dict[str, Any], folder: Path) -> None:
    """The record gives the held-out figures that the run noted, and its scorer the same rewards."""
    run = ["--run", result["run_id"], "--json"]

    def read(*words: str) -> dict[str, Any]:
        done = rollcall(*words, cwd=folder, **addresses(cluster))
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found

    rows = read("eval", *run)["versions"]
    assert [[row["version"], row["success"]["value"]] for row in rows] == result["held_out_curve"]
    rescored = read("rescore", "--scorer", "environment_return", "--rate", "0", *run)
    [agreement] = rescored["agreements"]
    assert agreement["compared"] == agreement["agree"] == rescored["rewarded"] > 0
    assert rescored["failed"] == 0


def assert_each_once(cluster: Cluster, steps: list[TrainStep]) -> None:
    """No trajectory was trained on twice, and a version number stands for one set of weights."""
    by_step = {step.step: step for step in steps}
    places = [(r.partition, r.offset) for step in by_step.values() for r in step.trajectories]
    rollouts = [r.rollout_id for step in by_step.values() for r in step.trajectories]
    assert len(places) == len(set(places))
    assert len(rollouts) == len(set(rollouts))
    versions = [
        cluster.codec.decode(record.value, PolicyVersion)
        for record in everything(cluster, cluster.topics.versions)
    ]
    assert len({v.version for v in versions}) == len({v.weights_digest for v in versions}) == 7
