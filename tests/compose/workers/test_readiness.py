"""A worker's start: waiting for who is away; a registry that was emptied while the log stays."""

import pytest

from compose.workers.readiness import check_readable, patiently
from schemas.codec import PREFIX
from schemas.errors import RegistryEmptied, TopicsDiffer, Unavailable
from schemas.messages import AttemptStarted, Control, Event
from tests.support.memory_cluster import MemoryCluster

ENTRY = Event.decision("r", 2, "w", AttemptStarted("because"))


def test_what_is_away_for_a_moment_is_waited_for() -> None:
    answers = [Unavailable("no broker"), Unavailable("no registry"), "a worker"]

    def build() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return str(answer)

    assert patiently(build, retry_s=0.0) == "a worker"
    assert answers == []


@pytest.mark.parametrize("error", [Unavailable("no broker"), TopicsDiffer("no such topic")])
def test_what_stays_away_or_will_never_come_ends_the_wait(error: Exception) -> None:
    def build() -> None:
        raise error

    with pytest.raises(type(error)):
        patiently(build, retry_s=0.0, give_up_s=0.0 if isinstance(error, Unavailable) else 60.0)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def write(world: MemoryCluster, value: bytes, partition: int = 0) -> None:
    world.log.append(world.topics.events, b"r", value, partition)


def test_an_empty_log_and_one_that_can_be_read_are_fine(cluster: MemoryCluster) -> None:
    check_readable(cluster)
    write(cluster, cluster.codec.encode(cluster.topics.events, ENTRY))
    check_readable(cluster)


def test_a_journal_of_which_no_schema_is_known_is_named(cluster: MemoryCluster) -> None:
    value = cluster.codec.encode(cluster.topics.events, ENTRY)
    write(cluster, PREFIX.pack(0, 9999) + value[PREFIX.size :])

    with pytest.raises(RegistryEmptied, match=f"{cluster.topics.events} was written with.*9999"):
        check_readable(cluster)


def test_an_id_dealt_anew_to_another_record_is_no_schema_of_ours(cluster: MemoryCluster) -> None:
    """What must never happen is that a record is read with another schema."""
    other = cluster.codec.encode(cluster.topics.control, Control("pause"))
    value = cluster.codec.encode(cluster.topics.events, ENTRY)
    write(cluster, other[: PREFIX.size] + value[PREFIX.size :])

    with pytest.raises(RegistryEmptied, match="belongs here"):
        check_readable(cluster)


def test_somebodys_bad_bytes_say_nothing_of_the_registry(cluster: MemoryCluster) -> None:
    write(cluster, b"rubbish", 0)
    check_readable(cluster)
