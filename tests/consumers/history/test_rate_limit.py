"""Readers give way while others are at work, and go as fast as they can else."""

import time

import pytest

from consumers.history.rate_limit import GivingWay, Pace, others_at_work
from schemas.messages import RolloutRequest, Task
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster


def cluster_of(age_s: float) -> MemoryCluster:
    """Whose records were all written so long ago."""
    made = MemoryCluster()
    made.log.wall = lambda: time.time() - age_s
    return made


def request(rollout_id: str) -> RolloutRequest:
    return RolloutRequest(rollout_id, Task(CORRIDOR), policy_id=POLICY)


def test_a_lot_pays_for_its_records_before_the_next_one() -> None:
    slept: list[float] = []
    pace = Pace(100.0, lambda: 5.0, slept.append)

    for count in (50, 25, 25):
        pace.wait(count)

    assert slept == [0.5, 0.75]


@pytest.mark.parametrize(("busy", "slept"), [(True, [0.25]), (False, [])])
def test_a_reader_keeps_to_its_rate_only_while_others_are_at_work(
    busy: bool, slept: list[float]
) -> None:
    found: list[float] = []
    way = GivingWay(200.0, lambda: busy, lambda: 5.0, found.append)

    way.wait(50)
    way.wait(50)

    assert found == slept
    assert way.lot() == (10 if busy else 500)


def test_a_reader_asks_again_whether_others_are_at_work() -> None:
    now, busy, slept = [5.0], [True], []
    way = GivingWay(200.0, lambda: busy[0], lambda: now[0], slept.append)
    way.wait(50)

    busy[0] = False
    now[0] += 2.0
    way.wait(50)
    way.wait(50)

    assert slept == []


def test_a_member_with_lag_is_at_work() -> None:
    cluster = cluster_of(age_s=3600)
    cluster.hire(lambda call: "left")
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()
    before = others_at_work(cluster)  # type: ignore[arg-type]

    cluster.hire(lambda call: "left")
    cluster.finish()
    cluster.ask(request("r"))

    assert not before
    assert others_at_work(cluster)  # type: ignore[arg-type]


def test_lag_of_a_group_without_members_is_nobodys_work() -> None:
    cluster = cluster_of(age_s=3600)
    cluster.hire(lambda call: "left")
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()

    cluster.ask(request("r"))

    assert not others_at_work(cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize(("age_s", "at_work"), [(5, True), (3600, False)])
def test_whoever_wrote_to_the_journal_a_moment_ago_is_at_work(age_s: float, at_work: bool) -> None:
    cluster = cluster_of(age_s)
    cluster.start(request("r"))

    assert others_at_work(cluster) is at_work  # type: ignore[arg-type]
