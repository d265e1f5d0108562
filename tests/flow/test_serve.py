"""`rollcall serve` by its command, on the real broker: asked, answered, scored, stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.inference.policy_dir import make_policy
from tests.support.command_line import ROOT, addresses, refused, rollcall
from tests.support.crew import workers_of
from tests.support.tiny_run import RECIPE
from tests.support.waiting import until

ASKED = '{"agent": "single_turn", "task": {"prompt": "s7"}, "sampling": {"max_tokens": 1}}\n'


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_served_policy_answers_until_it_is_stopped(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given a model directory, and a cluster that knows no policy yet
    given = parse_recipe(RECIPE, "tiny").policy
    make_policy(
        tmp_path / "model",
        config=given.config,
        tokens=given.tokens,
        template=given.template,
        seed=1,
    )
    cluster = make_cluster()
    served = (tmp_path / "served.log").open("wb")

    def words() -> str:
        return (tmp_path / "served.log").read_text()[-1500:]

    # When it is served and asked twice
    server = subprocess.Popen(
        [sys.executable, "-m", "rollcall.compose.cli", "serve", "--policy", "mine", "--directory",
         str(tmp_path / "model")],
        cwd=ROOT, stdout=served, stderr=subprocess.STDOUT,
        env={**os.environ, **addresses(cluster)},
    )  # fmt: skip
    try:
        until(lambda: "serving version 0" in words() or server.poll() is not None, 120, words)
        submit = ("submit", "-", "--policy", "mine", "--wait")
        done = rollcall(*submit, cwd=tmp_path, stdin=ASKED * 2, **addresses(cluster))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        served.close()

    # Then both were scored, and nothing is left running
    assert done.returncode == 0, done.stderr + words()
    assert "2 of 2 scored, 2 finished" in done.stdout
    assert server.returncode == 0
    assert "goes on when it is served again" in words()
    assert workers_of(server.pid) == {}


def test_invalid_model_directory_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    done = rollcall("serve", "--policy", "mine", "--directory", "nowhere", cwd=tmp_path)

    assert "nowhere is no Hugging Face directory" in refused(done)
    assert not (tmp_path / ".rollcall").exists()
