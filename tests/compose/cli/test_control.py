"""`rollcall pause` and `resume`: the agents read the published control records."""

import pytest

from rollcall.consumers.history.waiting.waiting import read_control
from rollcall.schemas.errors import Refused
from tests.support.command_line import call
from tests.support.memory_cluster import MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def test_all_requests_and_single_runs_are_paused_and_resumed_separately(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    call(cluster, "pause", "--run", "mine", "--reason", "a look at it")
    assert read_control(cluster).paused_runs == {"mine"}
    call(cluster, "pause")
    call(cluster, "resume", "--run", "mine")
    assert read_control(cluster).paused_runs == {""}
    call(cluster, "resume", "--run", "mine")
    call(cluster, "resume")

    assert read_control(cluster).paused_runs == set()
    said = capsys.readouterr().out
    assert "`rollcall resume --run mine` reverses this" in said
    assert "run mine is not paused" in said


def test_too_long_run_name_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(Refused, match="--run takes the name of a run"):
        call(cluster, "pause", "--run", "x" * 600)
