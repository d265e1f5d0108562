"""All processes of a cluster agree on the schema of each schema id."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rollcall.compose.chaos.wrong_registry import WrongRegistry
from rollcall.compose.cluster import Cluster, require_topics
from rollcall.compose.schema_ids import FRESH_S, SchemaIds
from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher, MemoryReader
from rollcall.consumers.log.protocols import Record, TopicPartition
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import (
    DeliveryFailed,
    NoTopic,
    Refused,
    RegistryDiffers,
    Unavailable,
    WorkFailed,
)
from rollcall.schemas.headers import Headers, texts
from rollcall.schemas.messages import Control, StoreIdentity
from rollcall.schemas.schema_memory import (
    FINGERPRINT,
    FORGOTTEN_BY,
    SCHEMA_ID,
    SchemaMemory,
    fingerprint,
)
from rollcall.schemas.topics import Topics, wanted
from tests.support.command_line import call
from tests.support.memory_cluster import MemoryCluster
from tests.support.rig import Clock
from tests.support.schemas_swapped import CANCEL, OURS, THEIRS, VERSIONS, registry

TOPICS = Topics("t.")
RIGHT, WRONG = (THEIRS, OURS), (OURS, THEIRS)
STOPPED = Clock()


class Log(MemoryLog):
    """A log with failures that are set by attributes."""

    refuses: WorkFailed | None = None
    fatal: DeliveryFailed | None = None
    holds_acks = False
    silent = False
    before_writing: Callable[[], object] | None = None
    readers = 0

    def __init__(self) -> None:
        super().__init__(wanted("t.", []))

    def refusal(self, topic: str, value: bytes | None) -> WorkFailed | None:
        return self.refuses or super().refusal(topic, value)

    def publisher(self, *, bulk: bool = False) -> Publisher:
        del bulk
        before, self.before_writing = self.before_writing, None
        if before is not None:
            before()
        if self.fatal is not None:
            raise self.fatal
        made = MemoryPublisher(self)
        made.hold_acks = self.holds_acks
        return made

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> MemoryReader:
        self.readers += 1
        made = SilentReader if self.silent else MemoryReader
        return made(self, topics, starts or {}, from_end=from_end)

    def ids(self) -> list[dict[str, str]]:
        """The records about ids."""
        return [texts(record.headers) for record in self.all(TOPICS.stores) if record.headers]


class SilentReader(MemoryReader):
    """Reads from a broker that has left."""

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        del timeout_s, most
        return []


class Ticking(Clock):
    """A clock that advances with every reading."""

    def __call__(self) -> float:
        self.now += 1
        return self.now


def process(log: Log, texts: Sequence[str], clock: Callable[[], float] = STOPPED) -> Codec:
    """A codec as a process on a machine that knows nothing has it."""
    ids = SchemaIds(lambda: log, TOPICS.stores, clock=clock)
    memory = SchemaMemory(ids.first, clock=clock)
    return Codec(registry(texts), clock=clock, memory=memory)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.permutations(VERSIONS), st.booleans(), st.booleans()),
        min_size=2,
        max_size=12,
    )
)
def test_every_record_is_read_by_its_writer_schema_or_not_at_all(
    steps: list[tuple[int, list[str], bool, bool]],
) -> None:
    """Processes come and go, each with a registry that deals the ids as it likes."""
    log, written, processes = Log(), [], {}
    for number, texts_, cold, writes in steps:
        if cold or number not in processes:
            processes[number] = process(log, texts_)
        here = processes[number]
        try:
            if writes:
                written.append(here.encode("t", CANCEL))
            for value in written:
                assert here.decode(value, Control) == CANCEL
        except RegistryDiffers:
            continue


def test_new_worker_with_a_wrong_registry_is_held() -> None:
    log = Log()
    first, cold = process(log, RIGHT), process(log, WRONG)
    value = first.encode("t", CANCEL)
    first.decode(b"\0\0\0\0\1" + value[5:], Control)

    for ask in (lambda: cold.decode(value, Control), lambda: cold.encode("t", CANCEL)):
        with pytest.raises(RegistryDiffers, match=r"another schema than before for id [12]"):
            ask()
    cold.registry = registry(RIGHT)

    assert cold.decode(value, Control) == CANCEL
    assert cold.encode("t", CANCEL) == value


def test_one_of_two_concurrent_first_processes_is_held() -> None:
    """Each has found nothing in the log before the other wrote."""
    for first, second in ((RIGHT, WRONG), (WRONG, RIGHT)):
        log, value = Log(), Codec(registry(first)).encode("t", CANCEL)
        winner, loser = process(log, first), process(log, second)
        log.before_writing = partial(winner.decode, value, Control)

        with pytest.raises(RegistryDiffers):
            loser.decode(value, Control)
        assert winner.decode(value, Control) == CANCEL
        assert len(log.ids()) == 2


def test_process_reads_the_log_once_when_its_ids_are_there() -> None:
    log = Log()
    writer = process(log, VERSIONS)
    values = [b"\0\0\0\0" + bytes([n + 1]) for n in range(len(VERSIONS))]
    value = writer.encode("t", CANCEL)[5:]
    for prefix in values:
        writer.decode(prefix + value, Control)
    written, log.readers = len(log.ids()), 0
    assert written == len(VERSIONS)

    reader = process(log, VERSIONS)
    for prefix in values * 3:
        reader.decode(prefix + value, Control)

    assert log.readers == 1
    assert len(log.ids()) == written


NAMES = st.sampled_from([SCHEMA_ID, FINGERPRINT, FORGOTTEN_BY, "other"])
WORDS = st.sampled_from([b"1", b"2", b"x", b"", b"9" * 30, fingerprint("z").encode()]) | st.binary()


@given(st.lists(st.tuples(st.none() | st.binary(), st.none() | st.lists(st.tuples(NAMES, WORDS)))))
def test_foreign_records_never_make_an_id_decode_wrongly(
    strange: list[tuple[bytes | None, Headers | None]],
) -> None:
    log = Log()
    for value, headers in strange:
        log.append(TOPICS.stores, None, value, 0, headers)
    codec = process(log, RIGHT)

    try:
        value = codec.encode("t", CANCEL)
    except RegistryDiffers:  # somebody tied the id, as all who may write there can
        return

    assert codec.decode(value, Control) == CANCEL
    with pytest.raises(RegistryDiffers):
        process(log, WRONG).decode(value, Control)


def test_malformed_record_is_logged_once_and_ignored() -> None:
    log = Log()
    for _ in range(3):
        log.append(TOPICS.stores, None, b"", 0, [(SCHEMA_ID, b"2"), (FINGERPRINT, b"short")])
    log.append(TOPICS.stores, None, b"value", 0, [(SCHEMA_ID, b"2"), (FORGOTTEN_BY, b"x")])

    with capture_logs() as logs:
        process(log, RIGHT).encode("t", CANCEL)

    assert [entry["event"] for entry in logs] == ["schema_id_unreadable"]


def test_id_records_and_store_records_do_not_mix() -> None:
    log = Log()
    codec = process(log, RIGHT)
    identity = codec.encode(TOPICS.stores, StoreIdentity("objects", "0" * 32))
    log.append(TOPICS.stores, b"objects", identity, 0)

    assert process(log, RIGHT).encode("t", CANCEL) == codec.encode("t", CANCEL)
    assert len(log.ids()) == 2


def test_wrongly_bound_id_is_forgotten_and_waiting_workers_continue() -> None:
    # Given a worker that is held, because another one was first and asked a wrong registry
    log, clock = Log(), Clock()
    right = process(log, RIGHT, clock)
    value = Codec(registry(RIGHT)).encode("t", CANCEL)
    process(log, WRONG).decode(value, Control)
    with pytest.raises(RegistryDiffers):
        right.decode(value, Control)

    # When a person has the id forgotten
    SchemaIds(lambda: log, TOPICS.stores).forget(2, "ann")
    clock.pass_by(FRESH_S)

    # Then it goes on, and the wrong one is held
    assert right.decode(value, Control) == CANCEL
    with pytest.raises(RegistryDiffers):
        process(log, WRONG).decode(value, Control)
    assert [told.get(FORGOTTEN_BY) for told in log.ids()] == [None, "ann", None]


def test_held_process_reads_the_log_at_intervals() -> None:
    log, clock = Log(), Clock()
    value = process(log, RIGHT).encode("t", CANCEL)
    held = process(log, WRONG, clock)
    log.readers = 0

    for _ in range(100):
        with pytest.raises(RegistryDiffers):
            held.decode(value, Control)
        clock.pass_by(FRESH_S / 20)

    assert 5 <= log.readers <= 7


def missing(log: Log) -> None:
    del log.topics[TOPICS.stores]


def denied(log: Log) -> None:
    log.refuses = NoTopic(TOPICS.stores, "not authorized")


def denied_at_all(log: Log) -> None:
    log.fatal = DeliveryFailed("the producer cannot go on: Cluster authorization failed")


@pytest.mark.parametrize("harm", [missing, denied, denied_at_all])
def test_process_uses_its_own_memory_when_the_topic_is_unusable(
    harm: Callable[[Log], None],
) -> None:
    log = Log()
    harm(log)
    codec = process(log, RIGHT)

    with capture_logs() as logs:
        value = codec.encode("t", CANCEL)
        other = codec.decode(b"\0\0\0\0\1" + value[5:], Control)

    assert [entry["event"] for entry in logs] == ["schema_ids_not_kept"]
    assert codec.decode(value, Control) == CANCEL != other
    fresh = Codec(registry(WRONG), memory=codec.memory)
    with pytest.raises(RegistryDiffers):
        fresh.decode(value, Control)


def test_all_written_schemas_are_bound_before_the_first_write() -> None:
    log = Log()
    records = {"t.control": Control, "t.stores": StoreIdentity}
    codec = Codec(LocalRegistry(), memory=process(log, ()).memory)
    codec.prepare_all(records)
    assert len(log.ids()) == 2
    assert log.readers == 2

    other = Codec(LocalRegistry(), memory=process(log, ()).memory)
    with pytest.raises(RegistryDiffers):
        other.prepare_all(dict(reversed(records.items())))


def test_two_records_under_one_id_are_held() -> None:
    class One(LocalRegistry):
        def writer_id(self, topic: str, schema: str) -> int:
            return 1

    with pytest.raises(RegistryDiffers):
        Codec(One()).prepare_all({"t.control": Control, "t.stores": StoreIdentity})


def test_read_only_process_is_held_by_ids_that_others_bound() -> None:
    log = Log()
    value = process(log, RIGHT).encode("t", CANCEL)
    denied(log)

    with capture_logs() as logs, pytest.raises(RegistryDiffers):
        process(log, WRONG).decode(value, Control)

    assert logs == []


def gone(log: Log) -> None:
    log.append(TOPICS.stores, None, b"", 0)
    log.silent = True


def unacked(log: Log) -> None:
    log.holds_acks = True


@contextmanager
def held_back(log: Log) -> Iterator[None]:
    """Hold a transaction open on the topic."""
    opened = log.transaction(TOPICS.stores, [b""])
    yield
    opened.abort()


@pytest.mark.parametrize("harm", [gone, unacked])
def test_broker_loss_while_binding_is_unavailable_and_writes_nothing(
    harm: Callable[[Log], None],
) -> None:
    log, clock = Log(), Ticking()
    harm(log)
    codec = process(log, RIGHT, clock)
    with pytest.raises(Unavailable, match=r"t\.stores"):
        codec.encode("t", CANCEL)

    log.silent = log.holds_acks = False
    clock.pass_by(60)

    assert codec.decode(codec.encode("t", CANCEL), Control) == CANCEL


def test_binding_that_cannot_be_read_back_does_not_count() -> None:
    log, clock = Log(), Clock()
    codec = process(log, RIGHT, clock)
    with held_back(log), pytest.raises(Unavailable, match="holds a transaction open"):
        codec.encode("t", CANCEL)
    clock.pass_by(60)

    assert codec.decode(codec.encode("t", CANCEL), Control) == CANCEL


def test_forget_id_shows_its_effect_first_and_then_signs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = MemoryCluster()
    ids = SchemaIds(lambda: cluster.log, cluster.topics.stores)
    ids.first({12: fingerprint("wrong")})

    call(cluster, "topics", "forget-id", "12")
    assert ids.read() == {12: fingerprint("wrong")}
    call(cluster, "topics", "forget-id", "12", "--by", "ann", "--yes")

    assert ids.read() == {}
    assert cluster.log.all(cluster.topics.stores)[-1].headers == [
        (SCHEMA_ID, b"12"),
        (FORGOTTEN_BY, b"ann"),
    ]
    assert "--yes does it" in capsys.readouterr().out
    with pytest.raises(Refused, match=r"t\.stores ties no schema id 12; it ties none"):
        call(cluster, "topics", "forget-id", "12", "--yes")


@pytest.mark.broker
def test_new_process_with_a_wrong_registry_is_held_by_the_log(
    make_cluster: Callable[..., Cluster],
) -> None:
    # Given a log that one process has written, and a registry that assigns its ids anew
    here = make_cluster("p")
    require_topics(here)
    value = here.codec.encode(here.topics.control, CANCEL)
    wrong = WrongRegistry(here.registry_url)
    assert wrong.learn()

    # When a process on another machine is led to it
    url = urlsplit(here.registry_url)._replace(netloc=f"127.0.0.1:{wrong.port}").geturl()
    cold = replace(here, registry_url=url)

    # Then it reads and writes nothing, and a cold one with the right registry does
    with pytest.raises(RegistryDiffers):
        cold.codec.decode(value, Control)
    with pytest.raises(RegistryDiffers):
        cold.codec.encode(here.topics.control, CANCEL)
    with pytest.raises(RegistryDiffers):
        require_topics(cold)
    again = replace(here)
    require_topics(again)
    assert again.codec.decode(value, Control) == CANCEL
    ids = SchemaIds(lambda: again.log, again.topics.stores)
    tied = ids.read()

    # And a person can have an id forgotten
    ids.forget(min(tied), "ann")
    assert ids.read().keys() == tied.keys() - {min(tied)}
    for each in (cold, again):
        each.close()
    wrong.close()
