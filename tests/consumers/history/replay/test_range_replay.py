"""`rollcall replay`: the requests that are published again, and their ids."""

from collections import Counter
from dataclasses import astuple, replace
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from rollcall.compose.cli.range_options import parse
from rollcall.compose.cli.replay import replay_lines
from rollcall.compose.request_checks import RequestChecks
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.range_replay import (
    RangeReplay,
    is_replayed,
    line_of,
    replay,
    replayed,
    replayed_id,
)
from rollcall.producers.submit import requests_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from tests.support.avro_messages import any_message
from tests.support.memory_cluster import CORRIDOR, MemoryCluster
from tests.support.recorded_run import recorded, scored
from tests.support.tiers import examples

REQUESTS = "t.rollout.requests"


@pytest.fixture
def cluster() -> MemoryCluster:
    return recorded()


def again(cluster: MemoryCluster, span: Range | None = None, **options: object) -> RangeReplay:
    given = {"to": "rollout.requests", "name": "again", "yes": True, **options}
    check = RequestChecks(cluster).check
    return replay(Selection(cluster, span or Range()), check=check, **given)  # type: ignore[arg-type]


def requests(cluster: MemoryCluster) -> dict[str, RolloutRequest]:
    found = [cluster.codec.decode(r.value, RolloutRequest) for r in cluster.log.all(REQUESTS)]
    assert len({request.rollout_id for request in found}) == len(found)
    return {request.rollout_id: request for request in found}


def test_a_replay_without_yes_publishes_nothing(cluster: MemoryCluster) -> None:
    found = again(cluster, yes=False)

    assert found.written == 8
    assert len(requests(cluster)) == 8
    said = "\n".join(replay_lines(found, yes=False))
    assert "8 requests would be written to t.rollout.requests" in said
    assert "8 of run run, policy p, purpose evaluate" in said
    assert f"r0 -> {replayed_id('r0', 'again')}" in said
    assert "--yes does it" in said


def test_a_replayed_rollout_is_asked_unchanged_outside_of_any_run(cluster: MemoryCluster) -> None:
    again(cluster)

    found = requests(cluster)
    old, new = found["r2"], found[replayed_id("r2", "again")]
    assert new == replace(
        old,
        rollout_id=new.rollout_id,
        run_id="replay/again",
        group_id=replayed_id("g1", "again"),
        sampling_seed="r2",
    )
    cluster.finish()
    totals = {name: each.total for name, each in scored(cluster, "default").items()}
    assert len(totals) == 16
    assert all(totals[f"r{n}"] == totals[replayed_id(f"r{n}", "again")] for n in range(8))


def test_a_second_replay_publishes_nothing(cluster: MemoryCluster) -> None:
    first = again(cluster)
    cluster.finish()
    second = again(cluster)
    from_trajectories = again(cluster, of="trajectories")

    assert (first.written, first.before, first.own) == (8, 0, 0)
    assert (second.written, second.before, second.own) == (0, 8, 8)
    assert (from_trajectories.written, from_trajectories.before) == (0, 8)
    assert len(requests(cluster)) == 16


def test_an_interrupted_replay_can_be_completed(cluster: MemoryCluster) -> None:
    bounds = cluster.log.bounds(REQUESTS)
    number, (low, end) = max(bounds.items(), key=lambda each: each[1][1])
    some = again(cluster, parse(offsets=[f"{number}:{low}-{end}"]))
    rest = again(cluster)

    assert some.written == end - low
    assert (rest.written, rest.before) == (8 - some.written, some.written)


def test_a_replay_under_another_name_also_repeats_replayed_rollouts(cluster: MemoryCluster) -> None:
    again(cluster)

    assert again(cluster, name="more").written == 16


@settings(max_examples=examples(30))
@given(any_message(RolloutRequest))
def test_a_replayed_id_depends_on_the_old_id_and_the_replay(request: RolloutRequest) -> None:
    once, other = replayed(request, "a"), replayed(request, "b")

    assert once == replayed(request, "a")
    assert len({request.rollout_id, once.rollout_id, other.rollout_id}) == 3
    assert is_replayed(once.rollout_id, "a")
    assert not is_replayed(once.rollout_id, "b")
    assert not is_replayed(once.rollout_id, "aa")


def test_submit_accepts_a_replay_file(cluster: MemoryCluster, tmp_path: Path) -> None:
    file = tmp_path / "again.jsonl"

    found = again(cluster, parse(run="run"), to=str(file))

    defaults = RolloutRequest("", Task())
    checks = RequestChecks(cluster)  # type: ignore[arg-type]
    read = list(requests_of(file.read_bytes().splitlines(), checks.check, defaults=defaults))
    wanted = [replayed(requests(cluster)[f"r{n}"], "again") for n in range(8)]
    assert sorted(read, key=lambda r: r.rollout_id) == sorted(wanted, key=lambda r: r.rollout_id)
    assert found.written == len(read) == 8
    with pytest.raises(Refused, match="is there already"):
        again(cluster, to=str(file))


@settings(max_examples=examples(30))
@given(any_message(RolloutRequest))
def test_a_line_is_read_back_as_the_same_request(request: RolloutRequest) -> None:
    values = (*astuple(request.sampling), *astuple(request.limits))
    numbers = [value for value in values if isinstance(value, float)]
    assume(all(map(isfinite, numbers)))  # others no JSON can say, and no worker takes
    named = replace(request, rollout_id="r", claim=None)

    [read] = requests_of([line_of(named)], lambda _: None, defaults=RolloutRequest("", Task()))

    assert read == named


def test_trajectories_are_replayed_unchanged_and_without_effect(cluster: MemoryCluster) -> None:
    topic = cluster.topics.trajectories
    before, rewards = cluster.log.all(topic), scored(cluster, "default")

    found = again(cluster, to="trajectories", name="")
    cluster.finish()

    def bare(records: list[object]) -> Counter[object]:
        return Counter((r.partition, r.key, r.value) for r in records)  # type: ignore[attr-defined]

    after = cluster.log.all(topic)
    assert found.written == 8
    assert bare(after) == Counter({each: 2 * count for each, count in bare(before).items()})  # type: ignore[arg-type]
    assert scored(cluster, "default") == rewards


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "give --name"),
        ({"name": "a/b"}, "--name 'a/b' must be"),
        ({"to": "env.steps"}, "requests go to t.rollout.requests or a file"),
        ({"to": "rollout.request"}, "did you mean 'rollout.requests'"),
        ({"to": "nowhere/out.jsonl"}, "has no directory nowhere"),
        ({"to": "trajectories"}, "goes without --name"),
        ({"of": "events"}, "unknown kind of record 'events'"),
    ],
)
def test_an_impossible_replay_is_refused_and_nothing_written(
    cluster: MemoryCluster, options: dict[str, object], says: str
) -> None:
    before = {name: cluster.log.bounds(name) for name in cluster.log.topic_names()}

    with pytest.raises(Refused, match=says):
        again(cluster, **options)

    assert {name: cluster.log.bounds(name) for name in cluster.log.topic_names()} == before


def test_one_invalid_request_keeps_all_from_being_published(
    cluster: MemoryCluster,
) -> None:
    cluster.ask(RolloutRequest("bad", Task(CORRIDOR), policy_id="gone"))

    with pytest.raises(Refused, match="policy 'gone' has no topic"):
        again(cluster)

    assert len(requests(cluster)) == 9
