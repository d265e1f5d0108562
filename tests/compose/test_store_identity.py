"""One object store for one cluster, whatever a process was started with."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest

from compose import store_identity
from compose.cli import objects
from compose.cli.connection import CLUSTER
from compose.schema_ids import SchemaIds
from compose.store_identity import NoStore, check_store, recorded
from consumers.log.memory_log import MemoryLog
from schemas.avro_schemas import schema_text
from schemas.claims import claim_of
from schemas.codec import Codec, LocalRegistry
from schemas.errors import ObjectLost, RegistryDiffers, StoresDiffer, Unavailable
from schemas.messages import Control, StoreIdentity
from schemas.objects import MARK, ObjectStore
from schemas.schema_memory import SchemaMemory
from schemas.topics import Topics, wanted

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


def test_whoever_comes_first_says_which_store_it_is_and_others_have_to_have_it(
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


def test_nothing_is_put_into_another_store_nor_read_from_one(world: World) -> None:
    first, other = world.process("a").objects, world.process("b").objects
    assert first is not None
    assert other is not None
    claim = first.put(VALUE)

    assert first.get(claim) == VALUE
    for call in (lambda: other.put(VALUE), lambda: other.get(claim)):
        with pytest.raises(StoresDiffer):
            call()
    assert not (world.home / "b").exists()


def test_two_that_come_first_at_once_have_one_store_or_one_of_them_is_refused(
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


def test_a_store_that_was_moved_with_its_marks_is_the_same(world: World) -> None:
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


def test_a_store_that_is_unmounted_under_a_worker_is_away_and_nothing_is_lost(
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


def test_without_any_store_a_claim_is_lost_until_the_cluster_gets_one(world: World) -> None:
    none = NoStore(world.process())
    check_store(world.process())

    with pytest.raises(ObjectLost, match="no store of objects is set here"):
        none.get(claim_of(VALUE))
    with pytest.raises(Unavailable, match="500 bytes are not kept"):
        none.put(VALUE)
    check_store(world.process("a"))
    with pytest.raises(StoresDiffer, match="none is set here"):
        none.get(claim_of(VALUE))


def test_what_strangers_write_on_the_topic_names_no_store(world: World) -> None:
    codec = Codec(world.registry)
    world.write(b"rubbish")
    for store, identity in (("objects", "../../etc"), ("objects", ""), ("other", "0" * 32)):
        world.write(codec.encode(TOPICS.stores, StoreIdentity(store, identity)))

    assert recorded(world.process()) == ""
    check_store(world.process("a"))
    assert recorded(world.process())


def test_a_registry_that_deals_its_ids_anew_hides_no_store(world: World) -> None:
    """Else a second identity would be written, and heavy records into two stores."""
    check_store(world.process("a"))
    world.registry = LocalRegistry()
    world.registry.writer_id("t", schema_text(Control))

    for directory in ("a", "b", ""):
        with pytest.raises(RegistryDiffers):
            check_store(world.process(directory))
    assert len([record for record in world.log.all(TOPICS.stores) if record.value]) == 1


def test_a_cluster_of_an_earlier_release_has_no_such_topic_and_goes_on(world: World) -> None:
    del world.log.topics[TOPICS.stores]

    check_store(world.process())
    check_store(world.process("a"))
    check_store(world.process("b"))


@pytest.mark.parametrize("command", [objects.list_objects, objects.gc])
def test_what_lies_in_another_clusters_store_is_neither_counted_nor_removed(
    world: World, command: Callable[[], None]
) -> None:
    check_store(world.process("a"))
    token = CLUSTER.set(world.process("b"))  # type: ignore[arg-type]

    with pytest.raises(StoresDiffer):
        command()

    CLUSTER.reset(token)
