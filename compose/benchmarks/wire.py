"""The bytes of a long rollout on the wire: one of 100 turns that ends with 32,768 tokens.

All groups, including scoring, play it on the in-memory log. Then its records are sent through our
own clients, each alone, to the client library's mock broker, and the bytes that leave the socket
are counted, including protocol requests. The ceiling is the necessary data: the text of every
message, and the training data of every token.
"""

import json
import time
from collections.abc import Sequence
from random import Random

import numpy as np

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.inside import Inside, MovedClock
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.consumers.log.protocols import Record
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.kafka_publisher import KafkaPublisher
from rollcall.producers.publisher import flush_all
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import Limits, ModelAnswered, ModelCall, RolloutRequest, Task

TOKENS = 32_768
TURNS = 100
CHARS = 4
"""The characters of text per token."""
PER_TOKEN = 4 + 1 + 4 + 4 + 1
"""The bytes of id, mask, log-probability, version and policy."""


LETTERS = "abcdefghijklmnopqrstuvwxyz     "
VOCABULARY = 150_000
FLUSH_S = 30.0
STATISTICS_MS = 10


class Wordy:
    """An environment whose observations have a fixed length."""

    replayable = False

    def __init__(self, turns: int, chars: int) -> None:
        self.left, self.chars = turns, chars
        self.random = Random(7)

    def open(self, seed: int) -> Observation:
        del seed
        return Observation(self._words())

    def step(self, action: str) -> Observation:
        del action
        self.left -= 1
        return Observation(self._words(), reward=1.0, terminated=self.left <= 0)

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""

    def _words(self) -> str:
        return "".join(self.random.choices(LETTERS, k=self.chars))


class Fluent:
    """A policy with answers of fixed length, random but reproducible."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.draw = np.random.default_rng(7)

    def __call__(self, call: ModelCall) -> ModelAnswered:
        count, draw = self.tokens, self.draw
        return ModelAnswered(
            text="".join(draw.choice(list(LETTERS), CHARS * count)),
            added_ids=draw.integers(0, VOCABULARY, count, np.int32).tobytes(),
            token_ids=draw.integers(0, VOCABULARY, count, np.int32).tobytes(),
            logprobs=(-draw.exponential(0.7, count)).astype(np.float32).tobytes(),
            versions=bytes(4 * count),
            finish_reason="stop",
            policy_id=call.policy_id,
            sequence=call.sequence,
        )


def bytes_of_a_rollout(settings: Settings, *, tokens: int = TOKENS, turns: int = TURNS) -> Figure:
    """Measure the bytes of all records of a rollout with `tokens` tokens in `turns` turns."""
    del settings
    half = tokens // turns // 2
    inside = Inside(ScriptedEngine(load.POLICY, Fluent(half)), MovedClock())
    inside.ask(_request(turns, CHARS * half))
    for _ in range(8 * turns):
        inside.turn()
    stored = {topic: inside.log.all(topic) for topic in inside.log.topic_names()}
    written = {topic: records for topic, records in stored.items() if records}
    if inside.topics.scored not in written:
        msg = f"the rollout of {turns} turns did not come to its score"
        raise ServicesError(msg)
    payload = 2 * turns * half * CHARS
    once = payload + 2 * turns * half * PER_TOKEN
    heavy = {inside.topics.trajectories, inside.topics.scored}
    sent = {topic: _sent(records, bulk=topic in heavy) for topic, records in written.items()}
    notes = tuple(_note(topic, sent[topic], records) for topic, records in written.items())
    return Figure(sum(sent.values()), "bytes", once, lower_is_better=True, notes=notes)


def _note(topic: str, sent: int, records: Sequence[Record]) -> str:
    values = sum(len(record.value or b"") for record in records)
    return f"{topic}: {sent:,} bytes sent for {values:,} in {len(records):,} records"


def _sent(records: Sequence[Record], *, bulk: bool) -> int:
    """Return the bytes that the client sends for these records, one after the other."""
    statistics: list[str] = []
    played = {
        "test.mock.num.brokers": 1,
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": statistics.append,
    }
    publisher = KafkaPublisher(played, bulk=bulk)
    for record in records:
        publisher.send("t", record.key, record.value, headers=record.headers)
        flush_all(publisher, FLUSH_S, "records", "the client library's own broker is slow")
    known = len(statistics)
    while len(statistics) < known + 2:  # one may have been on its way before the last ack
        publisher.poll()
        time.sleep(STATISTICS_MS / 1000)
    return int(json.loads(statistics[-1])["tx_bytes"])


def _request(turns: int, chars: int) -> RolloutRequest:
    task = Task(
        environment=f"{__name__}:{Wordy.__name__}",
        environment_config=f'{{"turns": {turns}, "chars": {chars}}}',
    )
    return RolloutRequest("0" * 32, task, policy_id=load.POLICY, limits=Limits(max_turns=turns))
