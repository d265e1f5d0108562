"""`rollcall verify`: what it prints, what it writes, and its exit code."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rollcall.compose.cluster import Cluster
from rollcall.compose.pages.audit_page import print_report
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.report import INVARIANTS, Report
from rollcall.schemas.messages import (
    EnvironmentStep,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    TrainStep,
    Trajectory,
    TrajectoryRef,
)
from tests.support.command_line import addresses, refused, rollcall
from tests.support.crew import Crew, Seen, everything, lake_requests, publish
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster
from tests.support.waiting import until


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    made.hire(lambda call: "left")
    for number in range(3):
        made.ask(RolloutRequest(f"r{number}", Task(CORRIDOR, seed=number), policy_id=POLICY))
    made.finish()
    return made


def page(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))
    return out.getvalue()


def test_valid_log_is_summarised_in_one_table(cluster: MemoryCluster) -> None:
    told: list[tuple[int, int]] = []

    report = audit(cluster, drained=True, on_read=lambda *far: told.append(far))

    shown = page(report)
    assert all(name in shown for name in INVARIANTS)
    assert "3 accepted, 3 ended, 0 open" in shown
    assert "every invariant holds" in shown
    assert told[-1] == (report.records, report.records)


def test_breaches_are_listed_with_their_places_up_to_twenty(
    cluster: MemoryCluster,
) -> None:
    topic = cluster.topics.trajectories
    [record, *_] = cluster.log.all(topic)
    other = replace(cluster.codec.decode(record.value, Trajectory), result="better")
    for _ in range(25):
        value = cluster.codec.encode(topic, other)
        cluster.log.append(topic, record.key, value, record.partition)

    report = audit(cluster)

    shown = page(report)
    assert f"I5  {topic} {record.partition}@{record.offset + 1}" in shown.replace("\n", "")
    assert shown.count("gives another") == 20
    assert "and 5 more breaches" in shown
    assert report.found["I5"] == 25


def test_unreadable_records_are_reported(cluster: MemoryCluster) -> None:
    cluster.log.crew = ()  # who would bury it while the log is read
    cluster.log.append(cluster.topics.events, b"k", b"rubbish", 0)

    report = audit(cluster)

    assert "unreadable records: t.rollout.events 1; the first: t.rollout.events 0@" in page(report)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "yesterday"], "'yesterday' is no time"),
        (["--since", "1h", "--until", "2h"], "--until 2h is not later than --since 1h"),
        (["--json", "nowhere/report.json"], "there is no directory 'nowhere'"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_read(
    tmp_path: Path, words: list[str], says: str
) -> None:
    assert says in refused(rollcall("verify", *words, cwd=tmp_path))


@pytest.mark.broker
def test_valid_run_on_the_broker_passes_until_it_is_damaged(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given a small run that has come to its end
    cluster = make_cluster("p")
    crew, seen = Crew(cluster, tmp_path), Seen(cluster)
    crew.start_all()
    try:
        publish(cluster, [replace(r, purpose="train") for r in lake_requests(16)])
        until(lambda: seen.count() == 16, 90, lambda: f"{seen.count()} scored; {crew.dead()}")
    finally:
        crew.close()

    # Then it is whole, whether all of it is looked at or its last hours
    whole = checked(cluster, tmp_path, "--drained", "--most-repeated", "0")
    assert whole["breaches"] == []
    assert (whole["accepted"], whole["ended"], whole["open"]) == (16, 16, 0)
    assert checked(cluster, tmp_path, "--since", "2h")["records"] == whole["records"]
    assert checked(cluster, tmp_path, "--until", "2h")["accepted"] == 0

    # When a trajectory, a command and training steps are written that cannot be
    harmed = harm(cluster)

    # Then each is a breach with its place
    found = checked(cluster, tmp_path, code=1)
    assert {
        (b["invariant"], b["topic"], b["partition"], b["offset"]) for b in found["breaches"]
    } == harmed


def checked(cluster: Cluster, folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    report = folder / "report.json"
    done = rollcall("verify", *words, "--json", str(report), cwd=folder, **addresses(cluster))
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def harm(cluster: Cluster) -> set[tuple[str, str, int, int]]:
    """Write three kinds of records that break an invariant; return places and invariants."""
    topics, codec, publisher = cluster.topics, cluster.codec, cluster.log.publisher()
    ended = everything(cluster, topics.trajectories)[0]
    other = replace(codec.decode(ended.value, Trajectory), result="better")
    asked = everything(cluster, topics.steps)[0]
    command = replace(codec.decode(asked.value, EnvironmentStep), command_id=b"x" * 16)
    record = everything(cluster, topics.scored)[0]
    scored = codec.decode(record.value, ScoredTrajectory).trajectory
    place = record.topic, record.partition, record.offset
    ref = TrajectoryRef(*place, scored.rollout_id, scored.attempt)
    steps = [TrainStep("p", "test", n, n, n - 1, (ref,), {}) for n in (1, 2)]
    ends = cluster.log.offsets_for_times([topics.trajectories, topics.steps], 1 << 50)
    for topic, message, partition in (
        (topics.trajectories, other, ended.partition),
        (topics.steps, command, asked.partition),
        (topics.train_steps, steps[0], 0),
        (topics.train_steps, steps[1], 0),
    ):
        publisher.send(topic, "k", codec.encode(topic, message), partition=partition)
    assert publisher.flush(30) == 0
    return {
        ("I5", topics.trajectories, ended.partition, ends[topics.trajectories, ended.partition]),
        ("I3", topics.steps, asked.partition, ends[topics.steps, asked.partition]),
        ("I7", topics.train_steps, 0, 1),
    }
