"""The records of one rollout are found in any partition with few other reads."""

from dataclasses import replace

import pytest

from rollcall.consumers.history.rollouts.rollout_search import FURTHER
from rollcall.consumers.history.rollouts.rollout_story import scores_of, stories_of
from rollcall.consumers.log.memory_log import MemoryReader
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster


def request(rollout_id: str, group_id: str = "") -> RolloutRequest:
    return RolloutRequest(rollout_id, Task(CORRIDOR, seed=1), policy_id=POLICY, group_id=group_id)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.hire(lambda call: "left")
    return cluster


def elsewhere(cluster: MemoryCluster, rollout_id: str) -> int:
    """A partition that the partitioner does not choose for a rollout."""
    likely = cluster.log.partition_of(cluster.topics.requests, rollout_id.encode())
    return (likely + 1) % cluster.log.partitions(cluster.topics.requests)


def found(cluster: MemoryCluster, rollout_id: str) -> list[tuple[int, int]]:
    """The partition and the number of scores of each rollout of an id."""
    same_id = stories_of(cluster, rollout_id)
    return [(story.partition, len(scores_of(cluster, story))) for story in same_id]


def test_a_rollout_is_found_in_any_partition(
    cluster: MemoryCluster,
) -> None:
    number = elsewhere(cluster, "r")
    cluster.ask(request("r"), number)
    cluster.ask(request("other"))
    cluster.finish()

    assert found(cluster, "r") == [(number, 1)]


def test_a_rollout_with_another_request_key_is_found(cluster: MemoryCluster) -> None:
    value = cluster.codec.encode(cluster.topics.requests, request("r"))
    cluster.log.append(cluster.topics.requests, b"another key", value, 1)
    cluster.finish()

    assert found(cluster, "r") == [(1, 1)]


def test_a_rollout_with_an_expired_request_is_found(cluster: MemoryCluster) -> None:
    cluster.ask(request("r"), 2)
    cluster.finish()
    cluster.log.delete_before(cluster.topics.requests, 2, 1)

    assert found(cluster, "r") == [(2, 1)]


def test_a_reused_id_finds_both_rollouts(cluster: MemoryCluster) -> None:
    for _ in range(2):
        cluster.ask(request("r"))
        cluster.finish()

    assert len(stories_of(cluster, "r")) == 2


def test_only_the_searched_members_scores_of_a_group_are_found(
    cluster: MemoryCluster,
) -> None:
    for name in ("a", "b"):
        cluster.ask(replace(request(name, "g"), group_size=2))
    cluster.finish()

    [story] = stories_of(cluster, "b")
    assert [score.trajectory.rollout_id for score in scores_of(cluster, story)] == ["b"]


def test_an_unknown_id_is_refused_with_the_nearest_one(
    cluster: MemoryCluster,
) -> None:
    cluster.ask(request("run/7/1"))
    cluster.finish()

    with pytest.raises(Refused, match=r"no rollout 'run/7' among .*did you mean 'run/7/1'"):
        stories_of(cluster, "run/7")


def test_a_request_not_yet_started_is_distinguished_from_an_unknown_one() -> None:
    cluster = MemoryCluster()
    cluster.ask(request("r"))

    with pytest.raises(Refused, match="is requested, but not started"):
        stories_of(cluster, "r")


def test_the_search_stops_reading_soon_after_the_rollouts_end(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.ask(request("r"))
    cluster.finish()
    [story] = stories_of(cluster, "r")
    junk = 3 * FURTHER
    for topic in (cluster.topics.events, cluster.topics.scored):
        for _ in range(junk):
            cluster.log.append(topic, b"another", b"junk", story.partition)
    delivered: list[Record] = []
    poll = MemoryReader.poll

    def counted(self: MemoryReader, timeout_s: float, most: int = 500) -> list[Record]:
        records = poll(self, timeout_s, most)
        delivered.extend(records)
        return records

    monkeypatch.setattr(MemoryReader, "poll", counted)
    cluster.log.crew = ()

    assert found(cluster, "r") == [(story.partition, 1)]
    assert len(delivered) < junk
