"""Faults of the broker, of time and of the group, each against real processes.

`FAULTS` says for every fault of the design (kafka_notes.md §5) which tests inject it. Where a fault
cannot be injected on one machine, the reason stands beside the tests that simulate it.
"""

import ast
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster, answers
from rollcall.compose.processes import started
from rollcall.compose.services.embedded import Endpoints, down, up
from rollcall.compose.settings import KafkaSettings, RegistrySettings, Settings
from rollcall.producers import provision
from rollcall.schemas.topics import wanted
from tests.support.broker import BROKER, SESSION_S, users_cache
from tests.support.crew import (
    Crew,
    Seen,
    assert_nothing_lost_or_doubled,
    everything,
    lake_requests,
    publish,
    reach,
)
from tests.support.waiting import until

pytestmark = pytest.mark.broker

HERE = "tests/flow/test_faults.py"
LOOP = "tests/consumers/loop/test_loop.py"
BACKPRESSURE = "tests/consumers/agents/test_backpressure.py"
CONTROL = "tests/consumers/agents/test_control_words.py"
REFUSALS = "tests/consumers/agents/test_request_refusals.py"
TAKEOVER = "tests/consumers/agents/test_takeover.py"
MEMORY = "tests/flow/test_memory_flow.py"
CONTRACT = "tests/contract/test_log.py"
CHAOS = "tests/flow/test_chaos_command.py"
READY = "tests/compose/workers/test_readiness.py"
RELEASED = "tests/schemas/test_released.py"

FAULTS: dict[str, list[str]] = {
    "F1": [
        "tests/flow/test_kafka_flow.py::test_sigkill_of_every_worker_loses_and_doubles_nothing",
        f"{MEMORY}::test_whatever_dies_every_rollout_has_one_end_and_one_history",
        "tests/flow/test_run.py::test_run_finishes_normally_although_every_worker_is_killed",
    ],
    "F2": [f"{HERE}::test_work_finished_before_sigterm_is_not_repeated"],
    "F3": [f"{HERE}::test_killed_broker_returns_with_all_acked_records"],
    "F4": [f"{HERE}::test_broker_paused_past_the_session_timeout_loses_nothing"],
    "F5": [
        f"{CHAOS}::test_cut_link_delivers_its_held_back_bytes_after_healing",
        f"{CHAOS}::test_dropped_link_resets_its_connections_and_accepts_new_ones",
        f"{CHAOS}::test_short_run_loses_and_doubles_nothing",
    ],
    "F7": [f"{HERE}::test_resumed_zombie_changes_no_history"],
    "F8": [
        f"{MEMORY}::test_rereading_all_requests_changes_nothing",
        f"{MEMORY}::test_group_without_its_commits_reaches_the_same_history",
    ],
    "F9": [f"{MEMORY}::test_whatever_dies_every_rollout_has_one_end_and_one_history"],
    "F10": [
        f"{LOOP}::test_an_unreadable_record_is_buried_unchanged",
        f"{LOOP}::test_records_wait_unburied_during_a_registry_outage",
        f"{REFUSALS}::test_an_unreadable_request_is_buried_and_refused",
    ],
    "F11": [
        f"{LOOP}::test_a_storm_of_unreadable_records_stops_the_worker",
        f"{LOOP}::test_a_storm_stops_every_restart_at_the_same_offset",
    ],
    "F12": [
        f"{CONTRACT}::test_too_large_value_is_refused_at_once",
        f"{REFUSALS}::test_an_oversized_command_fails_and_the_program_sees_it",
        f"{REFUSALS}::test_an_oversized_trajectory_is_written_bare",
    ],
    "F13": [f"{HERE}::test_broker_without_disk_space_loses_no_acked_records"],
    # Every role takes its clock as an argument, so each member of a schedule has another one; chaos
    # moves what a whole process reads as the time of day.
    "F14": [
        f"{MEMORY}::test_clocks_one_hour_apart_change_no_order",
        "tests/compose/chaos/test_wall_clock.py::test_process_reads_the_clock_set_for_it",
        f"{CHAOS}::test_short_run_loses_and_doubles_nothing",
    ],
    "F15": [f"{HERE}::test_constant_joining_and_leaving_does_not_stop_the_group"],
    "F16": [
        f"{LOOP}::test_a_wedged_loop_ends_its_process_with_a_traceback",
        "tests/consumers/environments/test_environments.py::test_a_hung_environment_fails_only_its_own_step",
        f"{CONTROL}::test_a_call_without_an_answer_fails_and_is_retried",
    ],
    "F17": [
        f"{BACKPRESSURE}::test_a_full_worker_pauses_requests_but_never_the_journal",
        f"{LOOP}::test_a_congested_partition_is_paused_and_resumed_at_half",
    ],
    "F18": [
        f"{CONTRACT}::test_role_that_needs_deleted_records_stops_its_worker",
        f"{TAKEOVER}::test_accepted_truncation_keeps_the_remaining_rollouts",
    ],
    "F19": [f"{HERE}::test_compacted_topic_is_read_to_its_end"],
    "F20": [
        f"{HERE}::test_partitions_added_under_load_are_used_and_move_no_rollout",
        f"{TAKEOVER}::test_a_recreated_topic_stops_the_worker_before_it_reads",
        f"{CONTRACT}::test_recreated_topic_has_another_id_and_no_commits",
    ],
    "F21": [
        f"{RELEASED}::test_all_released_versions_are_compatible_as_the_manifest_requires",
        "tests/journals/test_recorded.py::test_recorded_journal_folds_to_its_recorded_trajectories",
    ],
    "F23": [f"{CONTRACT}::test_paused_partition_gives_records_after_it_was_lost_and_returned"],
    "F24": [
        f"{LOOP}::test_a_refused_commit_is_retried",
        f"{TAKEOVER}::test_a_foreign_commit_is_treated_as_none",
        f"{TAKEOVER}::test_a_takeover_without_a_commit_folds_everything_and_resends_outstanding_commands",
    ],
    "F25": [f"{READY}::test_journal_with_an_unknown_schema_is_named"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_names_existing_tests(fault: str) -> None:
    assert FAULTS[fault]
    for named in FAULTS[fault]:
        path, name = named.split("::")
        tree = ast.parse((Path(__file__).parents[2] / path).read_text())
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, named


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker that may be harmed; it cleans compacted topics at once."""
    state = tmp_path_factory.mktemp("harmed")
    quick = {**BROKER, "log.cleaner.backoff.ms": "200"}
    yield up(state, users_cache(), ready=answers, broker_properties=quick)
    down(state, wipe=True)


@pytest.fixture
def crew(broker: Endpoints, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    settings = Settings(
        state_dir=tmp_path / "state",
        prefix=f"{request.node.originalname[5:40]}.".replace("_", "-"),
        kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
        registry=RegistrySettings(url=broker.registry_url),
    )
    cluster = Cluster(broker.bootstrap_servers, broker.registry_url, settings)
    provision.apply(cluster.admin, cluster.registry, wanted(settings.prefix, ["p"], partitions=4))
    crew = Crew(cluster, tmp_path)
    yield crew
    crew.close()
    cluster.close()


class Run:
    """A number of rollouts in progress, and their state."""

    def __init__(self, crew: Crew, rollouts: int) -> None:
        self.crew = crew
        self.requests = lake_requests(rollouts)
        crew.start_all()
        publish(crew.cluster, self.requests)
        self.seen = Seen(crew.cluster)

    def publish(self, more: int) -> None:
        """Publish more requests, so that new workers have work."""
        known = len(self.requests)
        self.requests = lake_requests(known + more)
        publish(self.crew.cluster, self.requests[known:])

    def reach(self, count: int, deadline_s: float = 60) -> None:
        reach(self.crew, self.seen, count, deadline_s)

    def assert_whole_at_its_end(self) -> None:
        """Let the run end; nothing may be lost, nothing doubled."""
        self.reach(len(self.requests), 120)
        assert_nothing_lost_or_doubled(self.crew.cluster, self.requests)


def broker_pid(broker: Endpoints) -> int:
    """The current pid: the broker may have been restarted."""
    again = up(broker.state_dir, users_cache(), ready=answers)
    return again.kafka_pid


def gone(pid: int) -> bool:
    return started(pid) is None


# The broker


def test_killed_broker_returns_with_all_acked_records(broker: Endpoints, crew: Crew) -> None:
    run = Run(crew, 700)
    run.reach(100)

    pid = broker_pid(broker)
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), 10, lambda: "the broker is still there")
    killed = time.monotonic()
    assert broker_pid(broker) != pid
    before = run.seen.count()
    run.reach(before + 50, 30)

    assert time.monotonic() - killed < 30, "progress again in half a minute"
    run.assert_whole_at_its_end()


@pytest.mark.thorough
def test_broker_paused_past_the_session_timeout_loses_nothing(
    broker: Endpoints, crew: Crew
) -> None:
    run = Run(crew, 700)
    run.reach(100)

    pid, stopped = broker_pid(broker), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: time.monotonic() - stopped > SESSION_S + 2, 20, lambda: "time stands still")
    finally:
        os.kill(pid, signal.SIGCONT)

    run.assert_whole_at_its_end()


@pytest.mark.thorough
def test_broker_without_disk_space_loses_no_acked_records(broker: Endpoints, crew: Crew) -> None:
    """A file that may not grow any more looks like a full disk to the writer."""
    run = Run(crew, 700)
    run.reach(100)

    pid = broker_pid(broker)
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    assert unlimited[0] == resource.RLIM_INFINITY
    until(lambda: gone(pid), 30, lambda: "the broker goes on although it cannot write")
    assert broker_pid(broker) != pid

    run.assert_whole_at_its_end()


def test_compacted_topic_is_read_to_its_end(crew: Crew) -> None:
    cluster, topic = crew.cluster, crew.cluster.topics.versions
    cluster.admin.alter(
        {
            topic: {
                "min.compaction.lag.ms": "0",
                "segment.ms": "1",
                "min.cleanable.dirty.ratio": "0.001",
                "delete.retention.ms": "0",
            }
        }
    )
    publisher = cluster.log.publisher()

    def write(number: int) -> None:
        policy = f"p{number % 3}"
        publisher.send(topic, policy, None if policy == "p2" else b"%d" % number)
        assert publisher.flush(10) == 0

    for number in range(30):
        write(number)

    def compacted() -> bool:
        write(30)  # only a closed segment is compacted, and only a new record closes one
        return len(everything(cluster, topic)) < 20

    until(compacted, 60, lambda: f"{len(everything(cluster, topic))} records are still there")
    records = everything(cluster, topic)  # returns: the reader comes to the end over the holes
    newest = {record.key: record.value for record in records}
    assert newest[b"p0"] == b"30"
    assert newest[b"p1"] == b"28"
    assert newest.get(b"p2") is None


# The group


@pytest.mark.thorough
def test_work_finished_before_sigterm_is_not_repeated(crew: Crew) -> None:
    run = Run(crew, 1000)

    for number, role in enumerate(("environments", "models", "agents", "rewards")):
        run.reach(100 + 200 * number)
        crew.leave(f"{role}-1")
        crew.start(role)
    run.assert_whole_at_its_end()

    answers_ = Counter(
        dict(record.headers or ())["ce_id"]
        for record in everything(crew.cluster, crew.cluster.topics.events)
        if (dict(record.headers or ())["ce_type"] or b"").decode()
        in ("ModelAnswered", "EnvironmentStepped")
    )
    assert {ce_id: count for ce_id, count in answers_.items() if count > 1} == {}
    assert set(run.seen.written.values()) == {1}


def test_resumed_zombie_changes_no_history(crew: Crew) -> None:
    run = Run(crew, 1000)
    crew.start("agents", 2)
    crew.start("environments", 2)
    run.reach(100)

    sleepers = [crew.processes[name] for name in ("agents-1", "environments-1")]
    for sleeper in sleepers:
        sleeper.send_signal(signal.SIGSTOP)
    slept = time.monotonic()
    # Past the session timeout; the others take over the partitions of the paused workers.
    until(lambda: time.monotonic() - slept > SESSION_S + 3, 20, lambda: "time stands still")
    run.publish(500)
    run.reach(min(run.seen.count() + 100, 1500))
    for sleeper in sleepers:
        sleeper.send_signal(signal.SIGCONT)

    run.assert_whole_at_its_end()
    assert crew.dead() == {}


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_constant_joining_and_leaving_does_not_stop_the_group(crew: Crew) -> None:
    run = Run(crew, 300)
    run.reach(100)

    for number in range(2, 8):
        before = run.seen.count()
        names = [crew.start("agents", number), crew.start("models", number)]
        for name in names:
            until(lambda name=name: crew.joined(name), 60, lambda name=name: crew.words(name))
        run.publish(150)
        (crew.kill if number % 2 else crew.leave)(names[0])
        crew.leave(names[1])
        run.reach(min(before + 1, len(run.requests)), 30)

    run.assert_whole_at_its_end()


@pytest.mark.thorough
def test_partitions_added_under_load_are_used_and_move_no_rollout(crew: Crew) -> None:
    cluster, topics = crew.cluster, crew.cluster.topics
    run = Run(crew, 800)
    run.reach(100)

    grown = wanted(cluster.settings.prefix, ["p"], partitions=6)
    provision.apply(cluster.admin, cluster.registry, grown)
    # A producer that starts now spreads over all of them.
    later = Cluster(cluster.bootstrap_servers, cluster.registry_url, cluster.settings)
    more = lake_requests(1200)[800:]
    publish(later, more)
    run.requests += more
    run.reach(len(run.requests), 120)
    crew.cluster = later

    run.assert_whole_at_its_end()
    used = {record.partition for record in everything(later, topics.events)}
    assert used == set(range(6))
    later.close()
