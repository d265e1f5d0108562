"""The containers of compose/docker: brought up, asked, one of them stopped, read on.

`.ci/docker` starts an engine, builds the image and names the compose files; elsewhere this is left
out, and says so.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.command_line import ROOT
from tests.support.pages import blocks

FOLDER = ROOT / "compose" / "docker"
WORKERS = {"agents", "environments", "rewards", "models", "training"}
SERVICES = {"kafka", "registry"}

pytestmark = pytest.mark.timeout(600)

if "COMPOSE_FILE" not in os.environ:
    pytest.skip(
        "left out for want of an engine: the containers of compose/docker, brought up, asked, one "
        "stopped, verified; `.ci/docker` as root starts an engine and runs them",
        allow_module_level=True,
    )


@pytest.fixture(scope="module", autouse=True)
def _containers() -> Iterator[None]:
    """Two agents and two environments workers, one of every other group."""
    compose("up -d --no-build --scale agents=2 --scale environments=2")
    yield
    compose("down --volumes")


def compose(words: str) -> str:
    """The output of docker-compose; fails with the end of the containers' logs."""
    return shell(f"docker-compose {words}")


def shell(line: str) -> str:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=540)
    if done.returncode != 0:
        logs = subprocess.run(
            ["docker-compose", "logs", "--no-color", "--tail", "25"], capture_output=True, text=True
        )
        pytest.fail(f"{line}\nexit code {done.returncode}\n{done.stdout}{done.stderr}{logs.stdout}")
    return done.stdout


def of_the_readme(word: str) -> str:
    """The one command of the README that contains a text, as it is typed there."""
    (block,) = blocks("bash", "compose/docker/README.md")
    (line,) = [line for line in block.splitlines() if word in line]
    return line.replace("docker compose", "docker-compose")


def containers(service: str) -> list[str]:
    return compose(f"ps --quiet {service}").split()


def inspected(container: str) -> dict[str, object]:
    (body,) = json.loads(shell(f"docker inspect {shlex.quote(container)}"))
    return {**body["State"], **body["HostConfig"], **body["Config"]}


def test_no_container_is_root_and_no_worker_writes_its_root() -> None:
    for service in SERVICES | WORKERS:
        for container in containers(service):
            found = inspected(container)
            assert found["User"] == "10001:10001", service
            assert found["CapDrop"] == ["ALL"], service
            assert found["ReadonlyRootfs"] is (service in WORKERS), service
    refused = shell("docker-compose exec -T agents touch /anything 2>&1 || true")
    assert "Read-only file system" in refused


def submit(count: int) -> str:
    """Publish the given number of rollouts, and wait until all of them are scored."""
    line = json.dumps({"agent": "single_turn", "task": {"prompt": "s7"}})
    lines = "\n".join([line] * count)
    asked = "exec -T agents rollcall submit - --policy lake-1 --wait"
    return compose(f"{asked} <<< {shlex.quote(lines)}")


def test_submitted_requests_come_back_scored() -> None:
    assert "1 of 1 scored, 1 finished" in shell(of_the_readme("rollcall submit"))

    lines = shell(of_the_readme("trajectories.scored")).splitlines()
    scored = [json.loads(line)["value"] for line in lines]
    assert len({each["trajectory"]["rollout_id"] for each in scored}) == 64


def test_trainer_learns_from_the_scored_rollouts() -> None:
    lines = compose("exec -T agents rollcall tail train.steps --follow --limit 2").splitlines()

    assert [json.loads(line)["value"]["step"] for line in lines] == [1, 2]


def test_other_workers_continue_when_a_worker_is_stopped() -> None:
    first, second = containers("agents")

    # Stopped as `docker compose stop` does: SIGTERM, and its work in progress is finished
    shell(f"docker stop --time 30 {second}")
    assert inspected(second)["ExitCode"] == 0
    assert inspected(first)["Running"] is True

    # Then rollouts on every partition end and are scored as before
    assert "32 of 32 scored, 32 finished" in submit(32)


def test_log_of_the_containers_holds_every_invariant() -> None:
    assert "every invariant holds" in shell(of_the_readme("rollcall verify"))


def test_three_brokers_keep_three_replicas_and_require_two_in_sync() -> None:
    files = " ".join(f"--file {FOLDER / name}" for name in ("compose.yaml", "compose.cluster.yaml"))
    # --file has precedence over the environment
    found = compose(f"{files} config")

    assert found.count("KAFKA_DEFAULT_REPLICATION_FACTOR: 3") == 3
    assert found.count("KAFKA_MIN_INSYNC_REPLICAS: 2") == 3
    assert "topics apply --cluster" in found
