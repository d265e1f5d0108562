"""SIGKILLs at random points of training neither lose nor change a step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.trainer.checkpoints import checkpoint as checkpoints
from tests.support.killed_learner import KINDS, live
from tests.support.tiers import cases

KILLS = {"delta": 12, "adapter": 6}


def told(path: Path) -> list[tuple[int, str]]:
    """Versions and digests, in order of time."""
    return [(int(v), digest) for v, digest in map(str.split, path.read_text().splitlines())]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", cases(KINDS, {"adapter"}))
def test_a_killed_learner_resumes_from_its_announcement_bit_for_bit(
    kind: str, model_directory: str, tmp_path: Path
) -> None:
    # Given a learner that is killed anywhere
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    for place in (killed, alone):
        place.mkdir()
    command = [
        sys.executable, "-m", "tests.support.killed_learner",
        model_directory, str(killed), kind, str(KILLS[kind]), "17",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, timeout=280, env=environment)
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]

    # When another takes the same steps without interruption
    announced, resumed = told(killed / "announced"), told(killed / "resumed")
    live(model_directory, alone, kind, steps=max(version for version, _ in announced))

    # Then every version was the same in both, and none was taken back
    undisturbed = dict(told(alone / "announced"))
    assert len(resumed) == KILLS[kind] - 1
    assert max(undisturbed) >= KILLS[kind] // 2
    for version, digest in announced + resumed:
        assert digest == undisturbed[version], version
    newest = checkpoints.load_latest(killed / "checkpoints").checkpoint
    assert newest is not None
    assert newest.version >= max(version for version, _ in announced)
