"""Agents in boxes of a worker without root: root runs these tests again as an ordinary user.

An ordinary user runs `test_agents_in_boxes` directly.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_interpreter import SYSTEMS
from tests.support.command_line import ROOT
from tests.support.engines import has, left_out
from tests.support.under_attack import ORDINARY_USER

WHAT = "agents in the boxes of an ordinary user's worker"
SHOWN = "reaches_its_own_endpoint or works_where_its_task_is"


def walkable(path: str) -> bool:
    """Whether all users can reach a path."""
    place = Path(path).resolve()
    return all(each.stat().st_mode & 0o001 for each in (place, *place.parents) if each.is_dir())


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the ordinary user; pytest's own directory belongs to root alone."""
    directory = Path(tempfile.mkdtemp(prefix="ordinary-"))
    os.chown(directory, ORDINARY_USER, ORDINARY_USER)
    yield directory
    shutil.rmtree(directory)


def as_ordinary_user(home: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    modules = [str(ROOT), *(each for each in sys.path if each.endswith("site-packages"))]
    variables = {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": os.pathsep.join(modules)}
    return subprocess.run(
        argv,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables},
        cwd=ROOT,
        user=ORDINARY_USER,
        group=ORDINARY_USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_agents_run_in_boxes_of_a_worker_without_root(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip(f"left out, as this is one: {WHAT}; `test_agents_in_boxes` shows them")
    if not has("bwrap"):
        left_out("bubblewrap", WHAT)
    places = [str(ROOT), *(each for each in sys.path if each.endswith("site-packages"))]
    version = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    if as_ordinary_user(home, str(SYSTEMS), "-c", version).returncode:
        left_out(f"a {SYSTEMS} of our version", WHAT)
    if closed := [each for each in places if not walkable(each)]:
        left_out(f"a way to {closed[0]} for everybody", WHAT)
    if as_ordinary_user(home, "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true").returncode:
        left_out("user namespaces for everybody", WHAT)

    test = str(ROOT / "tests" / "sandbox" / "agents" / "test_agents_in_boxes.py")
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={home}/tests", "-k", SHOWN]
    done = as_ordinary_user(home, str(SYSTEMS), "-m", "pytest", *options, test)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert done.stdout.splitlines()[-1].startswith("2 passed")
