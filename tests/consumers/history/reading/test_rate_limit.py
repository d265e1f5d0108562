"""Readers slow down while others are at work, and read at full speed otherwise."""

import time

import pytest

from rollcall.consumers.history.reading.rate_limit import (
    RateLimit,
    YieldingRateLimit,
    others_at_work,
)
from rollcall.schemas.messages import RolloutRequest, Task
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster


def cluster_of(age_s: float) -> MemoryCluster:
    """A cluster in which all records are this old."""
    made = MemoryCluster()
    made.log.wall = lambda: time.time() - age_s
    return made


def request(rollout_id: str) -> RolloutRequest:
    return RolloutRequest(rollout_id, Task(CORRIDOR), policy_id=POLICY)


def test_each_batch_waits_for_its_records_before_the_next() -> None:
    slept: list[float] = []
    pace = RateLimit(100.0, lambda: 5.0, slept.append)

    for count in (50, 25, 25):
        pace.wait(count)

    assert slept == [0.5, 0.75]


@pytest.mark.parametrize(("busy", "slept"), [(True, [0.25]), (False, [])])
def test_a_reader_is_throttled_only_while_others_are_active(busy: bool, slept: list[float]) -> None:
    found: list[float] = []
    way = YieldingRateLimit(200.0, lambda: busy, lambda: 5.0, found.append)

    way.wait(50)
    way.wait(50)

    assert found == slept
    assert way.lot() == (10 if busy else 500)


def test_a_reader_checks_regularly_if_others_are_active() -> None:
    now, busy, slept = [5.0], [True], []
    way = YieldingRateLimit(200.0, lambda: busy[0], lambda: now[0], slept.append)
    way.wait(50)

    busy[0] = False
    now[0] += 2.0
    way.wait(50)
    way.wait(50)

    assert slept == []


def test_a_group_member_with_lag_is_activity() -> None:
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


def test_lag_of_a_group_without_members_is_no_activity() -> None:
    cluster = cluster_of(age_s=3600)
    cluster.hire(lambda call: "left")
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()

    cluster.ask(request("r"))

    assert not others_at_work(cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize(("age_s", "at_work"), [(5, True), (3600, False)])
def test_a_recent_journal_write_is_activity(age_s: float, at_work: bool) -> None:
    cluster = cluster_of(age_s)
    cluster.start(request("r"))

    assert others_at_work(cluster) is at_work  # type: ignore[arg-type]
