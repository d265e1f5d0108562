"""The ceiling of the spine: the same records hop by hop, through the same clients, and no more.

It has three processes like the real workers, topics with the same settings and partition counts,
the same client settings, headers and sizes (prefixes grow over a rollout's turns), and as many
rollouts in flight. But there is no Avro, no fold, no commit gated by acks: the first bytes of a
value are its hop and its prepared rollout, and the next hop's bytes are sent.

A second run also decodes and encodes every record; the difference of the two is the cost of Avro.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rollcall.compose.benchmarks import load
from rollcall.compose.cluster import Cluster
from rollcall.consumers.log.protocols import Commit, Held, Record, TopicPartition
from rollcall.producers import provision
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import EnvironmentStep, Event, ModelCall
from rollcall.schemas.topics import Topics, wanted

KINDS = ("echo", "avro", "again")
"""The kinds of runs; the last repeats the first, on topics without leftover records."""
VARIANTS = 32
"""The number of prepared rollouts, so that batches compress no better than real ones."""
HEAD = 3
RECORDS = (ModelCall, Event, EnvironmentStep, Event)
COMMIT_EVERY_S = 1.0


def topics_of(cluster: Cluster, kind: str = KINDS[0]) -> Topics:
    return Topics(f"{cluster.settings.prefix}{kind}.")


def provide(cluster: Cluster) -> None:
    """Create topics like the real ones, with a prefix for each kind."""
    for kind in KINDS:
        given = wanted(topics_of(cluster, kind).prefix, [load.POLICY])
        provision.apply(cluster.admin, cluster.registry, [replace(t, record=None) for t in given])


def prepared(codec: Codec, topics: Topics, tokens: int) -> list[list[bytes]]:
    """Return complete records by variant and hop."""
    return [load.hops(codec, topics, tokens, f"{v:032x}") for v in range(VARIANTS)]


def values(plain: list[list[bytes]], partitions: int) -> list[list[list[bytes]]]:
    """Return the values to send, by partition, variant and hop."""
    return [
        [
            [bytes((hop, p, v)) + value[HEAD:] for hop, value in enumerate(hops)]
            for v, hops in enumerate(plain)
        ]
        for p in range(partitions)
    ]


class AvroWork:
    """The Avro part of a hop: decode the received record and encode the next one."""

    def __init__(self, codec: Codec, plain: list[list[bytes]], outlet: Sequence[str]) -> None:
        self.codec, self.plain, self.outlet = codec, plain, outlet
        self.messages = [
            [codec.decode(value, RECORDS[hop % load.HOPS]) for hop, value in enumerate(hops)]
            for hops in plain
        ]

    def hop(self, variant: int, hop: int, following: int) -> None:
        """Do both; the bytes that are sent are still the prepared ones."""
        self.codec.decode(self.plain[variant][hop], RECORDS[hop % load.HOPS])
        topic = self.outlet[following % load.HOPS]
        self.codec.encode(topic, self.messages[variant][following])


class FromTheStart:
    """A listener without state: every partition is read from its beginning."""

    def assigned(self, held: Held) -> int:
        return held.committed or held.log_start

    def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None: ...


def run(
    kind: str, role: str, cluster: Cluster, tokens: int, live: int, stopping: Callable[[], bool]
) -> None:
    """Receive a hop, send the next, commit once a second."""
    topics = topics_of(cluster, kind)
    consumed = {
        "agents": topics.events,
        "models": topics.calls(load.POLICY),
        "environments": topics.steps,
    }[role]
    source = cluster.log.source(f"{topics.prefix}{role}", [consumed], FromTheStart())
    publisher = cluster.log.publisher()
    answering = _Answering(kind, role, cluster, tokens, publisher)
    if role == "agents":
        answering.begin(live)
    positions: dict[int, int] = {}
    commit_due = time.monotonic() + COMMIT_EVERY_S
    while not stopping():
        for record in source.poll(0.02):
            answering.answer(record)
            positions[record.partition] = record.offset + 1
        publisher.poll()
        if time.monotonic() > commit_due:
            commit_due = time.monotonic() + COMMIT_EVERY_S
            source.commit([Commit(consumed, number, at, "") for number, at in positions.items()])
    publisher.flush(5)
    source.close()


class _Answering:
    """The sender of the hop after a received one."""

    def __init__(
        self, kind: str, role: str, cluster: Cluster, tokens: int, publisher: Publisher
    ) -> None:
        topics, codec = topics_of(cluster, kind), Codec(LocalRegistry())
        calls, events = topics.calls(load.POLICY), topics.events
        self.partitions = cluster.log.partitions(events)
        plain = prepared(codec, topics, tokens)
        self.table = values(plain, self.partitions)
        self.outlet = (calls, events, topics.steps, events)
        self.avro = AvroWork(codec, plain, self.outlet) if kind == "avro" else None
        self.times_itself = role == "environments"
        self.publisher = publisher

    def begin(self, live: int) -> None:
        """Send the first hop of `live` rollouts."""
        for number in range(live):
            value = self.table[number % self.partitions][number % VARIANTS][0]
            self.publisher.send(self.outlet[0], f"{number:032x}", value, headers=load.HEADERS[0])

    def answer(self, record: Record) -> None:
        """Send the hop after a record."""
        hop, partition, variant = (record.value or b"")[:HEAD]
        hops = self.table[partition][variant]
        following = (hop + 1) % len(hops)
        at = following % load.HOPS
        if self.avro:
            self.avro.hop(variant, hop, following)
        headers = load.HEADERS[at]
        if self.times_itself:
            headers = [("ce_id", b"%032d" % time.perf_counter_ns()), headers[1]]
        self.publisher.send(
            self.outlet[at],
            record.key,
            hops[following],
            partition=None if at in (0, 2) else partition,
            headers=headers,
        )


def is_answer(record: Record) -> bool:
    """Return True if a record of the journal's echo is a model's answer."""
    return record.value is not None and record.value[0] % load.HOPS == 1


def shown(record: Record) -> tuple[bytes | None, int] | None:
    """Return the rollout and time of an observation; None for an answer."""
    if is_answer(record):
        return None
    return record.key, int(dict(record.headers or ())["ce_id"])
