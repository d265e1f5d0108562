"""Whole rollouts through the real broker, by real processes that come, go and are killed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.schemas.messages import Limits
from tests.support.crew import (
    Crew,
    Seen,
    assert_nothing_lost_or_doubled,
    lake_requests,
    publish,
    reach,
)
from tests.support.waiting import until
from tests.support.waiting_lake import WAITING_LAKE

pytestmark = pytest.mark.broker
ROLES = ("agents", "models", "environments", "rewards")


@pytest.fixture
def crew(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(make_cluster("p"), tmp_path)
    yield crew
    crew.close()


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_workers_of_every_group_join_and_leave_during_a_run(crew: Crew) -> None:
    # Given a run under way with one worker a group
    requests = lake_requests(2600)
    crew.start_all()
    publish(crew.cluster, requests[:1000])
    seen = Seen(crew.cluster)
    reach(crew, seen, 50)

    # When a second worker of every group joins, works, and leaves again
    second = [crew.start(role, 2) for role in ROLES]
    for name in second:
        until(lambda name=name: crew.joined(name), 60, lambda name=name: crew.words(name))
    publish(crew.cluster, requests[1000:])
    reach(crew, seen, 1600)
    for name in second:
        crew.leave(name)
    reach(crew, seen, len(requests))

    # Then only the log shows it
    assert_nothing_lost_or_doubled(crew.cluster, requests)


@pytest.mark.timeout(300)
def test_sigkill_of_every_worker_loses_and_doubles_nothing(crew: Crew) -> None:
    requests = lake_requests(2000)
    crew.start_all()
    publish(crew.cluster, requests)
    seen = Seen(crew.cluster)

    for number, role in enumerate(ROLES):
        reach(crew, seen, 100 + 400 * number)
        crew.kill(f"{role}-1")
        crew.start(role)
    reach(crew, seen, len(requests), 120)

    assert_nothing_lost_or_doubled(crew.cluster, requests)


def test_waiting_rollouts_survive_the_loss_of_their_workers(crew: Crew) -> None:
    # Given more rollouts in environments that wait than a worker has slots
    limits = Limits(open_timeout_s=300.0)
    requests = [
        replace(each, task=replace(each.task, environment=WAITING_LAKE), limits=limits)
        for each in lake_requests(400)
    ]
    crew.start_all()
    publish(crew.cluster, requests)
    seen = Seen(crew.cluster)

    # When one worker dies over them, and another leaves as it was told to
    reach(crew, seen, 40)
    crew.kill("environments-1")
    crew.start("environments", 2)
    reach(crew, seen, 160)
    crew.start("environments", 3)
    until(lambda: crew.joined("environments-3"), 60, lambda: crew.words("environments-3"))
    crew.leave("environments-2")
    reach(crew, seen, len(requests))

    # Then nothing is lost and nothing doubled
    assert Counter(s.trajectory.status for s in seen.scored.values()) == {"finished": 400}
    assert_nothing_lost_or_doubled(crew.cluster, requests)
