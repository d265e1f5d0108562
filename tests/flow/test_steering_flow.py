"""Inspecting a killed run, and steering a live one, on the real broker."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex, select_dead_letters
from rollcall.consumers.history.waiting.open_work import PartitionOwner
from rollcall.consumers.history.waiting.waiting import NOBODY, OpenWaits, WaitReader, read_control
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Control, Event, RolloutCancelled, RolloutStarted
from tests.support.command_line import call
from tests.support.crew import (
    Crew,
    Seen,
    assert_nothing_lost_or_doubled,
    everything,
    lake_requests,
    publish,
)
from tests.support.waiting import until

pytestmark = pytest.mark.broker


@pytest.fixture
def crew(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(make_cluster("p"), tmp_path)
    yield crew
    crew.close()


def look(cluster: Cluster) -> OpenWaits:
    """The waits of all rollouts."""
    return WaitReader(cluster, cluster.admin, watched_world(5.0), "default").waiting()


def printed(capsys: pytest.CaptureFixture[str], cluster: Cluster, *words: str) -> str:
    """The output of one command."""
    capsys.readouterr()
    call(cluster, *words)
    return capsys.readouterr().out


def reasons(cluster: Cluster) -> Counter[tuple[str, str]]:
    """The number of waits by reason and owner."""
    found = look(cluster)
    return Counter((wait.reason, found.on(wait)) for wait in found.waits)


def starts(cluster: Cluster) -> list[int]:
    """When each rollout was started."""
    records = everything(cluster, cluster.topics.events)
    events = [(r, cluster.codec.decode(r.value, Event)) for r in records]
    return [r.timestamp_ms for r, event in events if isinstance(event.body, RolloutStarted)]


@pytest.mark.timeout(300)
def test_killed_run_reports_its_waits_and_accepts_cancels(
    crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given rollouts without workers, and then a run without models
    cluster, requests = crew.cluster, lake_requests(16)
    publish(cluster, requests)
    assert reasons(cluster) == {("admission", NOBODY): 16}
    names = [crew.start("agents"), crew.start("environments")]
    until(
        lambda: reasons(cluster) == {("call", NOBODY): 16},
        90,
        lambda: f"{reasons(cluster)} {crew.dead()}",
    )
    (member,) = cluster.admin.members([cluster.topics.group("agents")])
    assert member.client_id == names[0]
    assert len(member.partitions) == 8, "four of the requests, four of the journal"

    # When all of it is killed, it can be told all the same
    for name in names:
        crew.kill(name)
    found = look(cluster)
    assert {wait.reason for wait in found.waits} == {"call"}
    assert {wait.what.split()[0] for wait in found.waits} == {"p"}
    places = {wait.at for wait in found.waits}
    calls, models = cluster.topics.calls("p"), cluster.topics.group("models", "p")
    assert places <= {PartitionOwner(models, calls, number) for number in range(4)}
    assert all(wait.deadline_ms == wait.since_ms + 300_000 for wait in found.waits)

    # And cancelled rollouts end as soon as workers are there
    assert "8 open rollouts of group group-0" in printed(
        capsys, cluster, "cancel", "group-0", "--reason=enough"
    )
    assert "rollout rollout-8" in printed(
        capsys, cluster, "cancel", "rollout-8", "--reason=wrong task"
    )
    with pytest.raises(Refused, match="did you mean 'rollout-8'"):
        call(cluster, "cancel", "rolout-8")
    for role in ("agents", "environments", "models", "rewards"):
        crew.start(role)
    seen = Seen(cluster)
    until(lambda: seen.count() == 16, 120, lambda: f"{seen.count()} of 16; {crew.dead()}")

    # Then exactly these are cancelled, the others live, and there is nothing left to wait for
    cancelled = {name for name, s in seen.scored.items() if s.trajectory.status == "cancelled"}
    assert cancelled == {f"rollout-{n}" for n in range(9)}
    events = [
        cluster.codec.decode(r.value, Event) for r in everything(cluster, cluster.topics.events)
    ]
    told = {e.rollout_id: e.body.reason for e in events if isinstance(e.body, RolloutCancelled)}
    assert (told["rollout-0"], told["rollout-8"]) == ("enough", "wrong task")
    assert_nothing_lost_or_doubled(cluster, requests)
    assert look(cluster).waits == []
    gone = printed(capsys, cluster, "waiting", "--rollout=rollout-8")
    assert gone.startswith("note: rollout-8 has ended")
    assert "has ended already" in printed(capsys, cluster, "cancel", "rollout-8")
    assert "every rollout of group group-0 has ended" in printed(
        capsys, cluster, "cancel", "group-0"
    )


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_paused_agents_start_no_rollouts_until_resumed(
    crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given agents that were asked to pause
    cluster = crew.cluster
    call(cluster, "pause", "--reason=lunch")
    assert "paused already" in printed(capsys, cluster, "pause")
    name = crew.start("agents")
    publish(cluster, lake_requests(8))
    until(lambda: crew.joined(name), 60, lambda: crew.words(name))
    until(
        lambda: reasons(cluster) == {("admission", name): 8},
        60,
        lambda: f"{reasons(cluster)} {crew.words(name)}",
    )
    assert read_control(cluster).paused

    # When they are resumed
    call(cluster, "resume")
    until(lambda: len(starts(cluster)) == 8, 60, lambda: crew.words(name))

    # Then no start was written before that word
    (word,) = [
        record.timestamp_ms
        for record in everything(cluster, cluster.topics.control)
        if cluster.codec.decode(record.value, Control).kind == "resume"
    ]
    assert min(starts(cluster)) >= word
    assert "not paused" in printed(capsys, cluster, "resume")


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_drained_worker_leaves_under_load_without_loss(crew: Crew) -> None:
    # Given a run under way with two agents workers
    cluster, requests = crew.cluster, lake_requests(1500)
    crew.start_all()
    second = crew.start("agents", 2)
    for name in ("agents-1", second):
        until(lambda name=name: crew.joined(name), 90, lambda name=name: crew.words(name))
    publish(cluster, requests)
    seen = Seen(cluster)
    until(lambda: seen.count() >= 50, 90, lambda: f"{seen.count()} {crew.dead()}")

    # When the one that has been there from the start is drained
    with pytest.raises(Refused, match="did you mean 'agents-"):
        call(cluster, "drain", "agents-11")
    call(cluster, "drain", "agents-1", "--reason=this machine is wanted")

    # Then it exits with 0, the other goes on, and every rollout ends once
    assert crew.processes["agents-1"].wait(60) == 0, crew.words("agents-1")
    assert "drain_requested" in crew.words("agents-1")
    until(lambda: seen.count() == 1500, 120, lambda: f"{seen.count()} {crew.dead()}")
    assert crew.processes[second].poll() is None
    assert_nothing_lost_or_doubled(cluster, requests)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_dead_letters_are_listed_replayed_and_dropped(
    crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given two records that an environments worker could not read
    cluster = crew.cluster
    every = select_dead_letters([], source="", error="", since="", every=True)

    def left() -> int:
        index = DeadLetterIndex(cluster)
        return sum(not letter.state for letter in index.chosen(every))

    out = cluster.log.publisher()
    for key in (b"one", b"two"):
        out.send(cluster.topics.steps, key, b"no magic", partition=1, headers=[("h", b"1")])
    assert out.flush(20) == 0
    crew.start("environments")
    until(lambda: left() == 2, 90, lambda: f"{left()} {crew.dead()}")

    # When one is replayed, and that comes back as a letter of its own
    first = DeadLetterIndex(cluster).chosen(every)[0]
    call(cluster, "dlq", "replay", first.place())
    assert len(everything(cluster, cluster.topics.steps)) == 2
    for _ in range(2):
        call(cluster, "dlq", "replay", first.place(), "--yes")
    *_, sent = everything(cluster, cluster.topics.steps)
    assert (sent.partition, sent.offset, sent.value) == (1, 2, b"no magic")
    named = f"{cluster.topics.dead_letters} {first.place()}".encode()
    assert sent.headers == [("h", b"1"), ("dlq_replayed_from", named)]
    until(lambda: left() == 2, 60, lambda: f"{left()} {crew.dead()}")

    # And the rest is dropped
    call(cluster, "dlq", "drop", "--all", "--yes")

    # Then nothing is left on the list
    assert left() == 0
    capsys.readouterr()
    call(cluster, "dlq", "list")
    assert capsys.readouterr().out == "0 dead letters waiting, 3 dropped\n"
