"""Statistics of topics, on the in-memory log and on the broker."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rollcall.compose.cli.topics import print_stats
from rollcall.compose.cluster import Cluster
from rollcall.consumers.history.reading.topic_stats import LogState, measure
from rollcall.consumers.log.protocols import Commit, Held, TopicPartition
from rollcall.schemas.errors import Refused
from tests.support.command_line import addresses, refused, rollcall
from tests.support.crew import lake_requests, publish
from tests.support.memory_cluster import MemoryCluster

NOW_S = 1_000_000.0


class Idle:
    """A member of a group that reads nothing by itself."""

    def assigned(self, held: Held) -> int:
        return held.committed or held.log_start

    def revoked(self, partitions: object) -> None: ...

    def lost(self, partitions: object) -> None: ...


@pytest.fixture
def cluster() -> MemoryCluster:
    """Ten records of 100 bytes in partition 1, the last four within the last minute."""
    made = MemoryCluster()
    at = [NOW_S - 7200.0]
    made.log.wall = lambda: at[0]
    for number in range(10):
        at[0] = NOW_S - (1800 if number < 6 else 30) if number else at[0]
        made.log.append(made.topics.requests, b"k", b"v" * 99, 1)
    return made


def stats(cluster: MemoryCluster) -> LogState:
    return measure(cluster, now_s=NOW_S)


def test_a_topic_is_described_by_records_bytes_rates_and_times(cluster: MemoryCluster) -> None:
    found = {topic.name: topic for topic in stats(cluster).topics}

    requests = found[cluster.topics.requests]
    assert (requests.partitions, requests.records, requests.estimated_bytes) == (3, 10, 1000)
    assert requests.per_s == {"60": round(4 / 60, 3), "3600": round(9 / 3600, 3)}
    assert (requests.oldest_ms, requests.newest_ms) == (992_800_000, 999_970_000)
    empty = found[cluster.topics.events]
    assert (empty.records, empty.oldest_ms, empty.per_s) == (0, None, {})


def test_holes_and_retention_do_not_stop_the_count(cluster: MemoryCluster) -> None:
    cluster.log.delete_before(cluster.topics.requests, 1, 3)
    cluster.log.hole(cluster.topics.requests, 1)
    cluster.log.hole(cluster.topics.requests, 2)

    [requests] = [each for each in stats(cluster).topics if each.records]

    assert (requests.records, requests.oldest_ms) == (9, 998_200_000)


def test_lag_is_reported_by_group_topic_and_partition(cluster: MemoryCluster) -> None:
    topic: TopicPartition = (cluster.topics.requests, 1)
    source = cluster.log.source("t.agents", [topic[0]], Idle())
    source.poll(0.0, 3)
    source.commit([Commit(*topic, 4, "")])
    cluster.log.source("foreign", [topic[0]], Idle())

    [lag] = stats(cluster).lags

    assert (lag.group, lag.topic, lag.partitions, lag.total) == ("t.agents", topic[0], {1: 6}, 6)


def test_the_tables_mark_estimated_numbers(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    print_stats(stats(cluster), Console(width=160))

    shown = capsys.readouterr().out
    assert "~0.00" in shown
    assert "no group has committed anything yet" in shown


def test_missing_topics_are_refused_with_the_command_to_create_them() -> None:
    cluster = MemoryCluster()
    cluster.log.topics.clear()

    with pytest.raises(Refused, match="rollcall topics apply"):
        stats(cluster)


@pytest.mark.broker
def test_topic_stats_join_no_consumer_group(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("p")
    publish(cluster, lake_requests(8))

    done = rollcall("topics", "stats", "--json", cwd=tmp_path, **addresses(cluster))
    none = rollcall(
        "topics", "stats", cwd=tmp_path, **{**addresses(cluster), "ROLLCALL_PREFIX": "x."}
    )

    assert done.returncode == 0, done.stderr
    found = {topic["name"]: topic for topic in json.loads(done.stdout)["topics"]}
    requests = found[cluster.topics.requests]
    assert requests["records"] == 8
    assert requests["estimated_bytes"] > 800
    assert requests["per_s"]["60"] > 0.1
    assert "no topic begins with 'x.'" in refused(none)
    assert not [
        group for group in cluster.log.group_names() if group.startswith(cluster.settings.prefix)
    ]
