"""The ceiling of the spine: the same records hop by hop, through the same clients, no more.

Three processes as in the real thing, topics with the same settings and partition counts, the same
client settings, headers and sizes (prefixes grow over a rollout's turns), as many rollouts in
flight. But no Avro, no fold, no commit gated by acks: a value tells in its first bytes which hop
of which prepared rollout it is, and the next hop's bytes are sent.

A second run of it decodes and encodes every record too: what is between the two is Avro's.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from compose.benchmarks import load
from compose.cluster import Cluster
from consumers.log.protocols import Commit, Held, Record, TopicPartition
from producers import provision
from producers.publisher import Publisher
from schemas.codec import Codec, LocalRegistry
from schemas.messages import EnvironmentStep, Event, ModelCall
from schemas.topics import Topics, wanted

KINDS = ("echo", "avro", "again")
"""The last is the first once more, on topics in which nobody left what was on its way."""
VARIANTS = 32
"""Prepared rollouts, so that batches compress no better than real ones."""
HEAD = 3
RECORDS = (ModelCall, Event, EnvironmentStep, Event)
COMMIT_EVERY_S = 1.0


def topics_of(cluster: Cluster, kind: str = KINDS[0]) -> Topics:
    return Topics(f"{cluster.settings.prefix}{kind}.")


def provide(cluster: Cluster) -> None:
    """Create topics like the real ones, under a prefix of their own for each kind."""
    for kind in KINDS:
        given = wanted(topics_of(cluster, kind).prefix, [load.POLICY])
        provision.apply(cluster.admin, cluster.registry, [replace(t, record=None) for t in given])


def prepared(codec: Codec, topics: Topics, tokens: int) -> list[list[bytes]]:
    """Whole records by variant and hop."""
    return [load.hops(codec, topics, tokens, f"{v:032x}") for v in range(VARIANTS)]


def values(plain: list[list[bytes]], partitions: int) -> list[list[list[bytes]]]:
    """What is sent, by partition, variant and hop."""
    return [
        [
            [bytes((hop, p, v)) + value[HEAD:] for hop, value in enumerate(hops)]
            for v, hops in enumerate(plain)
        ]
        for p in range(partitions)
    ]


class AvroWork:
    """What reading the record that came and writing the one that goes adds to a hop."""

    def __init__(self, codec: Codec, plain: list[list[bytes]], outlet: Sequence[str]) -> None:
        self.codec, self.plain, self.outlet = codec, plain, outlet
        self.messages = [
            [codec.decode(value, RECORDS[hop % load.HOPS]) for hop, value in enumerate(hops)]
            for hops in plain
        ]

    def hop(self, variant: int, hop: int, following: int) -> None:
        """Do both; the bytes that travel are the prepared ones all the same."""
        self.codec.decode(self.plain[variant][hop], RECORDS[hop % load.HOPS])
        topic = self.outlet[following % load.HOPS]
        self.codec.encode(topic, self.messages[variant][following])


class FromTheStart:
    """A listener that keeps nothing: every partition is read from where it begins."""

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
    """Sends the hop that follows on one that came."""

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
        """Send the first hop of so many rollouts."""
        for number in range(live):
            value = self.table[number % self.partitions][number % VARIANTS][0]
            self.publisher.send(self.outlet[0], f"{number:032x}", value, headers=load.HEADERS[0])

    def answer(self, record: Record) -> None:
        """Send what follows on a record."""
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
    """Whether a record of the journal's echo is a model's answer."""
    return record.value is not None and record.value[0] % load.HOPS == 1


def shown(record: Record) -> tuple[bytes | None, int] | None:
    """Whose observation it was and when it was shown; None for an answer."""
    if is_answer(record):
        return None
    return record.key, int(dict(record.headers or ())["ce_id"])
