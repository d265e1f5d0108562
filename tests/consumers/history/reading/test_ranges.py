"""Naming a range of history, and reading it from the in-memory log."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.compose.cli.range_options import parse
from rollcall.consumers.history.reading.ranges import OffsetRange, Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task, Trajectory
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster
from tests.support.tiers import examples

NOW_S = 1_800_000_000.0
TRAJECTORIES = "t.trajectories"


@pytest.fixture
def cluster() -> MemoryCluster:
    """Six rollouts that have ended: four of run `a`, two of `b`."""
    made = MemoryCluster()
    made.hire(lambda call: "left")
    for number in range(6):
        run_id = "a" if number < 4 else "b"
        task = Task(CORRIDOR, seed=number)
        made.ask(RolloutRequest(f"r{number}", task, policy_id=POLICY, run_id=run_id))
    made.finish()
    return made


def read(cluster: MemoryCluster, span: Range) -> list[str]:
    """The rollouts of a range, of trajectories and of scored ones."""
    found = [t.rollout_id for _, t in Selection(cluster, span).trajectories()]
    scored = [s.trajectory.rollout_id for _, s in Selection(cluster, span).scored()]
    assert sorted(found) == sorted(scored)
    return sorted(found)


def refusal(cluster: MemoryCluster, span: Range) -> str:
    with pytest.raises(Refused) as refused:
        list(Selection(cluster, span).trajectories())
    return str(refused.value)


def sampled_by(cluster: MemoryCluster, *versions: int) -> Trajectory:
    """A trajectory with first tokens sampled by these versions, in turn."""
    record = cluster.log.all(TRAJECTORIES)[0]
    trajectory = cluster.codec.decode(record.value, Trajectory)
    [sequence] = trajectory.sequences or ()
    mask, packed, left = sequence.loss_mask, b"", list(versions)
    for at in range(len(mask)):
        version = (left.pop(0) if len(left) > 1 else left[0]) if mask[at] else -1
        packed += version.to_bytes(4, "little", signed=True)
    return replace(trajectory, sequences=(replace(sequence, versions=packed),))


def test_options_are_parsed_into_a_range(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("r1\n\n r2 \nr1\n")

    found = parse("2h", "30m", "a", "p@7", str(tmp_path / "ids"), now_s=NOW_S)

    since_ms, until_ms = int((NOW_S - 7200) * 1000), int((NOW_S - 1800) * 1000)
    assert found == Range(since_ms, until_ms, "a", "p", 7, frozenset({"r1", "r2"}))
    assert str(found) == (
        "since 2027-01-15T06:00:00Z, until 2027-01-15T07:30:00Z, run a, policy p@7, 2 rollout ids"
    )
    assert parse(offsets=["0:5-7", "2:0-1"]).offsets == (OffsetRange(0, 5, 7), OffsetRange(2, 0, 1))
    assert parse(policy="p").policy() == "p"
    assert not parse(policy="p@3").beyond_policy()


@settings(max_examples=examples(50))
@given(st.integers(0, 99), st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_offsets_are_parsed_back_as_written(partition: int, first: int, more: int) -> None:
    text = f"{partition}:{first}-{first + more}"

    found = parse(offsets=[text])

    assert (str(found), found.offsets) == (text, (OffsetRange(partition, first, first + more),))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"since": "1h", "until": "2h"}, "--until 2h is not later than --since 1h"),
        ({"since": "soon"}, "'soon' is no time"),
        ({"policy": "p@new"}, "neither a policy id nor POLICY@VERSION"),
        ({"policy": "@3"}, "neither a policy id nor POLICY@VERSION"),
        ({"offsets": ["0-5"]}, "not of the form PARTITION:FROM-TO"),
        ({"offsets": ["0:5-5"]}, "is empty: TO is not included"),
        ({"offsets": ["0:1-2", "0:3-4"]}, "a partition twice"),
        ({"offsets": ["0:1-2"], "since": "1h"}, "give one or the other"),
        ({"ids": "nowhere"}, "cannot be read from 'nowhere'"),
        ({"ids": "/dev/null"}, "holds no rollout id"),
    ],
)
def test_an_invalid_range_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(**options)  # type: ignore[arg-type]

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_records_are_read_up_to_the_end_at_the_start(cluster: MemoryCluster) -> None:
    found = Selection(cluster, Range()).trajectories()
    first = next(found)

    cluster.ask(RolloutRequest("late", Task(CORRIDOR), policy_id=POLICY))
    cluster.finish()

    assert sorted(t.rollout_id for _, t in [first, *found]) == [f"r{n}" for n in range(6)]
    assert len(read(cluster, Range())) == 7


def test_run_policy_and_ids_select_rollouts(cluster: MemoryCluster, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("r5\nr0\n")

    assert read(cluster, parse(run="b")) == ["r4", "r5"]
    assert len(read(cluster, parse(policy="p"))) == 6
    assert read(cluster, parse(ids=str(tmp_path / "ids"))) == ["r0", "r5"]
    assert read(cluster, parse(run="b", ids=str(tmp_path / "ids"))) == ["r5"]


def test_requests_are_selected_like_their_rollouts(cluster: MemoryCluster) -> None:
    found = [r.rollout_id for _, r in Selection(cluster, parse(run="b", policy="p")).requests()]

    assert sorted(found) == ["r4", "r5"]
    with pytest.raises(Refused, match="a request has no version"):
        Selection(cluster, parse(policy="p@0")).requests()


def test_a_rollout_belongs_to_a_version_that_sampled_all_of_it(cluster: MemoryCluster) -> None:
    steady, torn = sampled_by(cluster, 4), sampled_by(cluster, 4, 5)

    assert parse(policy="p@4").has(steady)
    assert not parse(policy="p@4").has(torn)
    assert not parse(policy="p@5").has(torn)
    assert parse(policy="p").has(torn)
    assert not parse(policy="p@4").has(replace(steady, sequences=(), policies=()))
    assert not parse(policy="q@4").has(steady)


def test_the_first_record_of_a_rollout_counts(cluster: MemoryCluster) -> None:
    for record in cluster.log.all(TRAJECTORIES):
        cluster.log.append(TRAJECTORIES, record.key, record.value, record.partition)

    found = [record for record, _ in Selection(cluster, Range()).trajectories()]

    assert len(found) == 6
    half = {n: (end - low) // 2 for n, (low, end) in cluster.log.bounds(TRAJECTORIES).items()}
    assert all(record.offset < half[record.partition] for record in found)


def test_offsets_refer_to_the_topic_that_is_read(cluster: MemoryCluster) -> None:
    everything = {(r.partition, r.offset): r.key for r in cluster.log.all(TRAJECTORIES)}
    number = max(partition for partition, _ in everything)

    span = parse(offsets=[f"{number}:0-1"])

    found = [record.key for record, _ in Selection(cluster, span).trajectories()]
    assert found == [everything[number, 0]]


def test_offsets_beyond_retention_are_refused_with_the_remaining_ones(
    cluster: MemoryCluster,
) -> None:
    bounds = cluster.log.bounds(TRAJECTORIES)
    number, (_, end) = max(bounds.items(), key=lambda each: each[1][1])
    cluster.log.delete_before(TRAJECTORIES, number, 1)

    gone = refusal(cluster, parse(offsets=[f"{number}:0-{end}"]))
    beyond = refusal(cluster, parse(offsets=[f"{number}:1-{end + 1}"]))
    nowhere = refusal(cluster, parse(offsets=["77:0-1"]))

    assert f"--offsets {number}:0-{end} of {TRAJECTORIES} is past retention" in gone
    assert f"{number}:1-{end}" in gone
    assert "is not all there" in beyond
    assert "is not all there" in nowhere


def test_an_empty_range_is_reported_with_the_existing_offsets(cluster: MemoryCluster) -> None:
    assert "nothing in t.trajectories (until " in refusal(cluster, parse(until="2h"))
    assert "; there is 0:0-" in refusal(cluster, parse(until="2h"))
    assert "there is nothing at all" in refusal(MemoryCluster(), Range())


def test_times_refer_to_the_append_time_of_a_record(cluster: MemoryCluster) -> None:
    assert len(read(cluster, parse(since="1h"))) == 6
    assert len(read(cluster, Range(until_ms=1 << 45))) == 6
    assert "nothing in" in refusal(cluster, Range(since_ms=1 << 45))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"run": "c"}, "no rollout of run 'c' in t.trajectories; known are a, b"),
        ({"policy": "pp"}, "no rollout of policy 'pp' in t.trajectories; did you mean 'p'?"),
        ({"policy": "p@9"}, "whose every token version 9 of 'p' sampled; there is 0"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    cluster: MemoryCluster, options: dict[str, str], says: str
) -> None:
    assert says in refusal(cluster, parse(**options))  # type: ignore[arg-type]


def test_unknown_ids_are_refused_before_any_record(cluster: MemoryCluster, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("r1\nr\nx9\n")
    span = parse(ids=str(tmp_path / "ids"))

    with pytest.raises(Refused) as refused:
        Selection(cluster, span).trajectories()

    says = "2 of 3 rollout ids are not in t.trajectories: 'r', 'x9'; did you mean 'r0'?"
    assert str(refused.value) == says
    with pytest.raises(Refused, match=r"2 of 3 .* t\.trajectories\.scored"):
        list(Selection(cluster, span).scored())


def test_unreadable_records_are_skipped(cluster: MemoryCluster) -> None:
    cluster.log.append(TRAJECTORIES, b"r9", b"rubbish", 0)

    found = [t.rollout_id for _, t in Selection(cluster, Range()).trajectories()]

    assert sorted(found) == [f"r{n}" for n in range(6)]


def test_reading_commits_nothing_and_joins_no_group(cluster: MemoryCluster) -> None:
    before = {name: dict(group.committed) for name, group in cluster.log.groups.items()}

    read(cluster, Range())

    after = {name: dict(group.committed) for name, group in cluster.log.groups.items()}
    assert after == before
