"""How much of the log is read to list the waits for a score."""

from random import Random

import pytest

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.history.waiting import waiting
from rollcall.consumers.history.waiting.waiting import OpenWaits, WaitReader
from rollcall.consumers.log.protocols import Commit
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from tests.support.command_line import call
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster


def hired(*requests: RolloutRequest) -> MemoryCluster:
    """A cluster on which these rollouts ran and were scored; its workers have left."""
    cluster = MemoryCluster()
    cluster.hire(lambda call: "left")
    for request in requests:
        cluster.ask(request, 0)
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()
    cluster.log.crew = ()
    return cluster


def request(rollout_id: str, *scorings: str, group_id: str = "") -> RolloutRequest:
    task = Task(CORRIDOR, seed=1)
    return RolloutRequest(rollout_id, task, policy_id=POLICY, scorings=scorings, group_id=group_id)


def look(cluster: MemoryCluster) -> OpenWaits:
    world = FoldContext(program_of, Random)
    return WaitReader(cluster, cluster.admin, world, "default").waiting()


def test_an_abandoned_scoring_is_awaited_only_by_requests_that_name_it() -> None:
    cluster = hired(request("a"), request("b", "default"), request("c", "default", "tried"))
    cluster.log.commit_for("t.rewards.tried", [Commit("t.trajectories", 0, 0, "")])

    waits = look(cluster).waits

    assert [(wait.rollout_id, wait.what) for wait in waits] == [("c", "scoring 'tried'")]


def test_a_scoring_far_behind_limits_the_read_and_this_is_remarked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = hired(*(request(f"r{number}", "default", "tried") for number in range(5)))
    cluster.log.commit_for("t.rewards.tried", [Commit("t.trajectories", 0, 0, "")])
    monkeypatch.setattr(waiting, "MOST_TRAJECTORIES", 2 * 3)

    found = look(cluster)

    newest = cluster.trajectories()[-2:]
    assert {wait.rollout_id for wait in found.waits} == {each.rollout_id for each in newest}
    assert found.remarks[0].startswith("3 older trajectories that some scoring has not come past")


def test_ended_rollouts_and_groups_are_distinguished_from_unknown_ones(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cluster = hired(request("r", group_id="g"))

    call(cluster, "waiting", "--rollout", "r")
    call(cluster, "waiting", "--group", "g")

    out = capfd.readouterr().out
    assert "r has ended, and its rewards are there" in out
    assert "g has ended, and its rewards are there" in out
    with pytest.raises(Refused, match="no rollout and no group 'nothing'"):
        call(cluster, "waiting", "--rollout", "nothing")
