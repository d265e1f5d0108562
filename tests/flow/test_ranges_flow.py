"""Ranges of history on the real broker: retention, times, and a topic that is written meanwhile."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rollcall.compose.cli.range_options import parse
from rollcall.compose.cluster import Cluster
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Trajectory
from tests.support.broker import BrokerLog
from tests.support.scored_trajectories import ended

pytestmark = pytest.mark.broker


def write(cluster: Cluster, *trajectories: Trajectory) -> None:
    publisher, topic = cluster.log.publisher(), cluster.topics.trajectories
    for number, trajectory in enumerate(trajectories):
        value = cluster.codec.encode(topic, trajectory)
        publisher.send(topic, trajectory.rollout_id, value, partition=number % 4)
    assert publisher.flush(30) == 0


def read(cluster: Cluster, span: Range) -> list[tuple[int, int, str]]:
    found = Selection(cluster, span).trajectories()
    return sorted((record.partition, record.offset, each.rollout_id) for record, each in found)


def test_retained_records_are_read_and_deleted_ones_are_refused(
    make_cluster: Callable[..., Cluster], kafka_log: BrokerLog
) -> None:
    # Given 40 trajectories in four partitions, of the first of which three records are gone
    cluster = make_cluster("p")
    topic = cluster.topics.trajectories
    write(cluster, *(replace(ended(f"r{n}"), last_offset=n) for n in range(40)))
    kafka_log.delete_before(topic, 0, 3)

    # Then the remaining records are read, by place and by time
    left = sorted((n % 4, n // 4, f"r{n}") for n in range(40))[3:]
    assert read(cluster, Range()) == left
    assert read(cluster, parse(since="1h")) == read(cluster, Range())
    places = read(cluster, parse(offsets=["0:3-5", "2:9-10"]))
    assert places == [(0, 3, "r12"), (0, 4, "r16"), (2, 9, "r38")]

    # And deleted or missing records are refused with the remaining range
    for options, says in (
        ({"offsets": ["0:0-5"]}, f"0:0-5 of {topic} is past retention; there is 0:3-10, 1:0-10"),
        ({"offsets": ["1:5-11"]}, f"1:5-11 of {topic} is not all there"),
        ({"until": "1h"}, f"nothing in {topic} (until"),
        ({"since": "0s"}, f"nothing in {topic} (since"),
    ):
        with pytest.raises(Refused) as refused:
            read(cluster, parse(**options))  # type: ignore[arg-type]
        assert says in str(refused.value)


def test_range_ends_at_the_current_end_and_disturbs_no_group(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster("p")
    write(cluster, *(ended(f"r{n}") for n in range(8)))
    groups = cluster.log.group_names()
    found = Selection(cluster, Range()).trajectories()

    write(cluster, *(ended(f"late{n}") for n in range(8)))

    assert sorted(each.rollout_id for _, each in found) == [f"r{n}" for n in range(8)]
    assert len(read(cluster, Range())) == 16
    assert cluster.log.group_names() == groups
