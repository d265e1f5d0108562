"""A registry that was emptied while the log stays (F25)."""

import pytest

from compose.workers.registry_fit import check_readable
from schemas.codec import PREFIX
from schemas.errors import RegistryEmptied
from schemas.messages import AttemptStarted, Control, Event
from tests.support.memory_cluster import MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


ENTRY = Event.decision("r", 2, "w", AttemptStarted("because"))


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
