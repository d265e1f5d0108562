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
from schemas.codec import Codec, LocalRegistry
from schemas.messages import EnvironmentStep, Event, ModelCall
from schemas.topics import Topics, wanted

KINDS = ("echo", "avro")
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


class Avro:
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
    calls, steps, events = topics.calls(load.POLICY), topics.steps, topics.events
    partitions = cluster.log.partitions(events)
    codec = Codec(LocalRegistry())
    plain = prepared(codec, topics, tokens)
    table = values(plain, partitions)
    consumed = {"agents": events, "models": calls, "environments": steps}[role]
    source = cluster.log.source(f"{topics.prefix}{role}", [consumed], FromTheStart())
    publisher = cluster.log.publisher()
    if role == "agents":
        for number in range(live):
            value = table[number % partitions][number % VARIANTS][0]
            publisher.send(calls, f"{number:032x}", value, headers=load.HEADERS[0])
    outlet = (calls, events, steps, events)
    avro = Avro(codec, plain, outlet) if kind == "avro" else None
    positions: dict[int, int] = {}
    commit_due = time.monotonic() + COMMIT_EVERY_S
    while not stopping():
        for record in source.poll(0.02):
            hop, partition, variant = (record.value or b"")[:HEAD]
            hops = table[partition][variant]
            following = (hop + 1) % len(hops)
            at = following % load.HOPS
            if avro:
                avro.hop(variant, hop, following)
            headers = load.HEADERS[at]
            if role == "environments":
                headers = [("ce_id", b"%032d" % time.perf_counter_ns()), headers[1]]
            publisher.send(
                outlet[at],
                record.key,
                hops[following],
                partition=None if at in (0, 2) else partition,
                headers=headers,
            )
            positions[record.partition] = record.offset + 1
        publisher.poll()
        if time.monotonic() > commit_due:
            commit_due = time.monotonic() + COMMIT_EVERY_S
            source.commit([Commit(consumed, number, at, "") for number, at in positions.items()])
    publisher.flush(5)
    source.close()


def is_answer(record: Record) -> bool:
    """Whether a record of the journal's echo is a model's answer."""
    return record.value is not None and record.value[0] % load.HOPS == 1


def shown(record: Record) -> tuple[bytes | None, int] | None:
    """Whose observation it was and when it was shown; None for an answer."""
    if is_answer(record):
        return None
    return record.key, int(dict(record.headers or ())["ce_id"])
