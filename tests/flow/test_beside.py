"""A rolling upgrade, and back: workers of the last release beside ours, on one log, all killed."""

import json
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from rollcall.compose.chaos.other_release import unpack
from rollcall.schemas.errors import Refused
from tests.support.chaos_command import chaos
from tests.support.command_line import ROOT

RELEASED = "c73aa9c1cbd5048f2be3951ca66447f84ce6f2d5"
"""The commit of the release that must go on working beside ours."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last release, installed as a user has it; the clone must reach back to it."""
    source, built = tmp_path_factory.mktemp("released"), tmp_path_factory.mktemp("wheel")
    archive = subprocess.run(
        ["git", "archive", RELEASED], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built)]
    subprocess.run([*pip, str(source)], check=True, capture_output=True, timeout=170)
    return next(built.glob("*.whl"))


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(420)
def test_two_releases_swapped_one_by_one_lose_and_double_nothing(
    wheel: Path, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    with chaos(
        "--kills", "8", "--seed", "11", "--json", str(figures), "--rollouts", "200",
        "--kill", "agents,models,environments,rewards", "--beside", str(wheel), cwd=tmp_path,
    ) as run:  # fmt: skip
        said, complained = run.communicate(timeout=400)

    assert run.returncode == 0, said + complained
    found = json.loads(figures.read_text())
    assert found["accepted"] == found["ended"] == 200
    assert found["lost"] == found["doubled"] == found["breaches"] == 0
    assert found["faults"] == 8
    assert found["ended_by_themselves"] == {}


def test_invalid_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rollcall-0.2.0-py3-none-any.whl").write_bytes(b"no archive")

    with pytest.raises(Refused, match="--beside"):
        unpack(tmp_path / "rollcall-0.2.0-py3-none-any.whl", tmp_path / "beside")
