"""Whole rollouts through the real broker, by real processes that come, go and are killed."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.cluster import Cluster
from tests.support.crew import (
    Crew,
    Seen,
    assert_nothing_lost_or_doubled,
    lake_requests,
    publish,
    reach,
)
from tests.support.waiting import until

pytestmark = pytest.mark.broker
ROLES = ("agents", "models", "environments", "rewards")


@pytest.fixture
def crew(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(make_cluster("p"), tmp_path)
    yield crew
    crew.close()


def test_every_request_ends_once_and_is_scored_once(crew: Crew) -> None:
    requests = lake_requests(200)
    crew.start_all()

    publish(crew.cluster, requests)
    seen = Seen(crew.cluster)
    reach(crew, seen, len(requests))

    assert Counter(s.trajectory.status for s in seen.scored.values()) == {"finished": 200}
    assert all(scored.total is not None for scored in seen.scored.values())
    assert set(seen.written.values()) == {1}
    assert_nothing_lost_or_doubled(crew.cluster, requests)


def test_workers_of_every_group_join_and_leave_during_a_run(crew: Crew) -> None:
    # Given a run under way with one worker a group
    requests = lake_requests(6000)
    crew.start_all()
    publish(crew.cluster, requests[:3000])
    seen = Seen(crew.cluster)
    reach(crew, seen, 50)

    # When a second worker of every group joins, works, and leaves again
    second = [crew.start(role, 2) for role in ROLES]
    for name in second:
        until(lambda name=name: crew.joined(name), 60, lambda name=name: crew.words(name))
    publish(crew.cluster, requests[3000:])
    reach(crew, seen, 4000)
    for name in second:
        crew.leave(name)
    reach(crew, seen, len(requests))

    # Then nobody noticed but the log
    assert_nothing_lost_or_doubled(crew.cluster, requests)


@pytest.mark.timeout(300)
def test_sigkill_of_every_worker_loses_nothing_and_doubles_nothing(crew: Crew) -> None:
    requests = lake_requests(6000)
    crew.start_all()
    publish(crew.cluster, requests)
    seen = Seen(crew.cluster)

    for number, role in enumerate(ROLES):
        reach(crew, seen, 100 + 1000 * number)
        crew.kill(f"{role}-1")
        crew.start(role)
    reach(crew, seen, len(requests), 120)

    assert_nothing_lost_or_doubled(crew.cluster, requests)
