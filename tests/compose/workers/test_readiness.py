"""A worker's start: waiting for unavailable services; a registry emptied under an existing log."""

import pytest

from rollcall.compose.workers.readiness import check_readable, patiently
from rollcall.schemas.codec import PREFIX
from rollcall.schemas.errors import RegistryEmptied, TopicsDiffer, Unavailable
from rollcall.schemas.messages import AttemptStarted, Control, Event
from tests.support.memory_cluster import MemoryCluster

ENTRY = Event.decision("r", 2, "w", AttemptStarted("because"))


def test_start_waits_for_temporarily_unavailable_services() -> None:
    answers = [Unavailable("no broker"), Unavailable("no registry"), "a worker"]

    def build() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return str(answer)

    assert patiently(build, retry_s=0.0) == "a worker"
    assert answers == []


@pytest.mark.parametrize("error", [Unavailable("no broker"), TopicsDiffer("no such topic")])
def test_permanent_failure_ends_the_wait(error: Exception) -> None:
    def build() -> None:
        raise error

    with pytest.raises(type(error)):
        patiently(build, retry_s=0.0, give_up_s=0.0 if isinstance(error, Unavailable) else 60.0)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def write(world: MemoryCluster, value: bytes, partition: int = 0) -> None:
    world.log.append(world.topics.events, b"r", value, partition)


def test_empty_and_readable_logs_pass_the_check(cluster: MemoryCluster) -> None:
    check_readable(cluster)
    write(cluster, cluster.codec.encode(cluster.topics.events, ENTRY))
    check_readable(cluster)


def test_journal_with_an_unknown_schema_is_named(cluster: MemoryCluster) -> None:
    value = cluster.codec.encode(cluster.topics.events, ENTRY)
    write(cluster, PREFIX.pack(0, 9999) + value[PREFIX.size :])

    with pytest.raises(RegistryEmptied, match=f"{cluster.topics.events} was written with.*9999"):
        check_readable(cluster)


def test_id_reassigned_to_another_record_is_refused(cluster: MemoryCluster) -> None:
    """A record must never be read with another schema."""
    other = cluster.codec.encode(cluster.topics.control, Control("pause"))
    value = cluster.codec.encode(cluster.topics.events, ENTRY)
    write(cluster, other[: PREFIX.size] + value[PREFIX.size :])

    with pytest.raises(RegistryEmptied, match="belongs here"):
        check_readable(cluster)


def test_unreadable_bytes_do_not_fail_the_registry_check(cluster: MemoryCluster) -> None:
    write(cluster, b"rubbish", 0)
    check_readable(cluster)
