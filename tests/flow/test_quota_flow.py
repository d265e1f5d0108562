"""Quotas on a real broker: set by a command, enforced by workers, reported from the log."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.schemas.messages import Limits, RolloutRequest, Task
from tests.support.command_line import call
from tests.support.crew import Crew, assert_nothing_lost_or_doubled, everything, publish
from tests.support.waiting import until

pytestmark = pytest.mark.broker
HELD = ("ann", "quota: 2 of 2 running")
LIMITS = Limits(call_timeout_s=600.0)


@pytest.fixture
def crew(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(make_cluster("p"), tmp_path)
    yield crew
    crew.close()


def told(cluster: Cluster) -> Counter[tuple[str, str]]:
    """The number of waits by user and reason; sent calls count as "call"."""
    reader = WaitReader(cluster, cluster.admin, watched_world(5.0), "default")
    return Counter(
        (wait.rollout_id[:3], "call" if wait.what == "p 1/0/0" else wait.what)
        for wait in reader.waiting().waits
    )


def ended(cluster: Cluster) -> int:
    return len(everything(cluster, cluster.topics.trajectories))


def most_in_a_second(cluster: Cluster, user: str) -> int:
    """Calls of a user that lie within one second of one another."""
    records = everything(cluster, cluster.topics.calls("p"))
    at = sorted(r.timestamp_ms for r in records if (r.key or b"").startswith(user.encode()))
    return max(number - bisect_left(at, ms - 1000) for number, ms in enumerate(at, 1))


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_quotas_hold_are_reported_and_can_be_raised(crew: Crew) -> None:
    # Given two users that ask for more than one of them may have
    cluster = crew.cluster
    call(cluster, "quota", "set", "ann", "--running", "2")
    asked = [
        RolloutRequest(f"{user}{n}", Task(prompt="Go."), "single_turn", policy_id="p", user=user,
                       limits=LIMITS)
        for user, count in (("ann", 12), ("bob", 6)) for n in range(count)
    ]  # fmt: skip
    name = crew.start("agents")
    publish(cluster, asked)

    # Then the log gives the reason for each wait, even without workers
    expected = {("ann", "call"): 2, HELD: 10, ("bob", "call"): 6}
    until(lambda: told(cluster) == expected, 60, lambda: f"{told(cluster)} {crew.dead()}")
    crew.kill(name)
    assert told(cluster) == expected

    # And a new quota holds for waiting rollouts on every worker
    call(cluster, "quota", "set", "ann", "--calls-per-s", "4")
    for role in ("agents", "models"):
        crew.start(role)
    trajectories = cluster.topics.trajectories
    until(
        lambda: len(everything(cluster, trajectories)) >= len(asked), 90, lambda: f"{crew.dead()}"
    )
    assert_nothing_lost_or_doubled(cluster, asked)
    assert told(cluster).keys() <= {("ann", "scoring 'default'"), ("bob", "scoring 'default'")}
    # At most two of the first worker, the bucket of its heir, and one second of refill.
    assert most_in_a_second(cluster, "ann") <= 2 + 4 + 4 + 1
