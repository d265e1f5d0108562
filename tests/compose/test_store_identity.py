"""One object store for one cluster, independent of the settings of a process."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest

from rollcall.compose import store_identity
from rollcall.compose.cli import objects
from rollcall.compose.cli.connection import CLUSTER
from rollcall.compose.schema_ids import SchemaIds
from rollcall.compose.store_identity import NoStore, check_store, recorded
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.claims import claim_of
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import ObjectLost, RegistryDiffers, StoresDiffer, Unavailable
from rollcall.schemas.messages import Control, StoreIdentity
from rollcall.schemas.objects import MARK, ObjectStore
from rollcall.schemas.schema_memory import SchemaMemory
from rollcall.schemas.topics import Topics, wanted

TOPICS = Topics("t.")
VALUE = b"heavy" * 100


@dataclass
class Place:
    """One process of a cluster, with a store of its own or none."""

    log: MemoryLog
    registry: LocalRegistry
    objects: ObjectStore | None = None
    topics: Topics = TOPICS

    @cached_property
    def codec(self) -> Codec:
        ids = SchemaIds(lambda: self.log, self.topics.stores)
        return Codec(self.registry, memory=SchemaMemory(ids.first))


@dataclass
class World:
    """One cluster, and directories in which processes are started."""

    home: Path

    def __post_init__(self) -> None:
        self.log = MemoryLog(wanted("t.", []))
        self.registry = LocalRegistry()

    def process(self, directory: str = "") -> Place:
        place = Place(self.log, self.registry)
        if directory:
            identify = partial(store_identity.identify, place)
            place.objects = ObjectStore(str(self.home / directory), identify=identify)
        return place

    def write(self, value: bytes) -> None:
        self.log.append(TOPICS.stores, b"objects", value, 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_first_process_decides_the_store_and_others_must_share_it(
    world: World,
) -> None:
    check_store(world.process("a"))
    check_store(world.process("a"))
    (world.home / "also a").symlink_to(world.home / "a")
    check_store(world.process("also a"))

    assert recorded(world.process())
    with pytest.raises(StoresDiffer, match=r"objects.url is '.*/b'.*rollcall-objects\..*Give the"):
        check_store(world.process("b"))
    with pytest.raises(StoresDiffer, match="none is set here; set ROLLCALL_OBJECTS__URL"):
        check_store(world.process())
    assert len([record for record in world.log.all(TOPICS.stores) if record.value]) == 1


def test_another_store_is_neither_written_nor_read(world: World) -> None:
    first, other = world.process("a").objects, world.process("b").objects
    assert first is not None
    assert other is not None
    claim = first.put(VALUE)

    assert first.get(claim) == VALUE
    for call in (lambda: other.put(VALUE), lambda: other.get(claim)):
        with pytest.raises(StoresDiffer):
            call()
    assert not (world.home / "b").exists()


def test_concurrent_first_processes_share_one_store_or_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has found nothing in the log before the other wrote."""
    raced = [False]

    def race(directory: str) -> None:
        bear = ObjectStore.bear

        def late(store: ObjectStore, identity: str) -> None:
            if not raced[0]:
                raced[0] = True
                check_store(world.process("a"))
            bear(store, identity)

        raced[0] = False
        monkeypatch.setattr(ObjectStore, "bear", late)
        check_store(world.process(directory))

    race("a")
    check_store(world.process("a"))
    world.log = MemoryLog(wanted("t.", []))
    with pytest.raises(StoresDiffer):
        race("b")


def test_moved_store_with_its_marks_is_the_same(world: World) -> None:
    place = world.process("a")
    check_store(place)
    assert place.objects is not None
    claim = place.objects.put(VALUE)

    shutil.move(world.home / "a", world.home / "moved")
    moved = world.process("moved")
    check_store(moved)
    assert moved.objects is not None
    assert moved.objects.get(claim) == VALUE
    with pytest.raises(StoresDiffer):
        check_store(world.process("a"))


def test_unmounted_store_is_unavailable_and_nothing_is_lost(
    world: World,
) -> None:
    place = world.process("a")
    check_store(place)
    assert place.objects is not None
    claim = place.objects.put(VALUE)
    shutil.move(world.home / "a", world.home / "elsewhere")
    (world.home / "a").mkdir()
    (world.home / "a" / MARK).touch()  # of another cluster

    with pytest.raises(Unavailable):
        place.objects.get(claim)

    shutil.rmtree(world.home / "a")
    shutil.move(world.home / "elsewhere", world.home / "a")
    assert place.objects.get(claim) == VALUE


def test_claim_without_a_store_is_lost_until_the_cluster_has_one(world: World) -> None:
    none = NoStore(world.process())
    check_store(world.process())

    with pytest.raises(ObjectLost, match="no store of objects is set here"):
        none.get(claim_of(VALUE))
    with pytest.raises(Unavailable, match="500 bytes are not kept"):
        none.put(VALUE)
    check_store(world.process("a"))
    with pytest.raises(StoresDiffer, match="none is set here"):
        none.get(claim_of(VALUE))


def test_foreign_records_on_the_topic_name_no_store(world: World) -> None:
    codec = Codec(world.registry)
    world.write(b"rubbish")
    for store, identity in (("objects", "../../etc"), ("objects", ""), ("other", "0" * 32)):
        world.write(codec.encode(TOPICS.stores, StoreIdentity(store, identity)))

    assert recorded(world.process()) == ""
    check_store(world.process("a"))
    assert recorded(world.process())


def test_registry_with_reassigned_ids_does_not_hide_the_store(world: World) -> None:
    """Otherwise a second identity would be written, and heavy records into two stores."""
    check_store(world.process("a"))
    world.registry = LocalRegistry()
    world.registry.writer_id("t", schema_text(Control))

    for directory in ("a", "b", ""):
        with pytest.raises(RegistryDiffers):
            check_store(world.process(directory))
    assert len([record for record in world.log.all(TOPICS.stores) if record.value]) == 1


def test_older_cluster_without_the_stores_topic_still_works(world: World) -> None:
    del world.log.topics[TOPICS.stores]

    check_store(world.process())
    check_store(world.process("a"))
    check_store(world.process("b"))


@pytest.mark.parametrize("command", [objects.list_objects, objects.gc])
def test_objects_in_the_store_of_another_cluster_are_not_touched(
    world: World, command: Callable[[], None]
) -> None:
    check_store(world.process("a"))
    token = CLUSTER.set(world.process("b"))  # type: ignore[arg-type]

    with pytest.raises(StoresDiffer):
        command()

    CLUSTER.reset(token)
