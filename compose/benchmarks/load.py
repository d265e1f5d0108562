"""The measured rollouts: an environment and a policy that answer at once.

A turn is four records: call, answer, step, observation. Rollouts have 8 turns by default; a token
stands for four characters of text, an observation adds 32 tokens.
"""

import json
import time
from collections.abc import Iterator
from random import Random

import numpy as np

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import AppliedEvent, Journal
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.loop.answers import event_of
from rollcall.inference.scripted import Script
from rollcall.sandbox.environment import Observation
from rollcall.schemas.codec import Codec
from rollcall.schemas.headers import hot_headers
from rollcall.schemas.messages import (
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    Limits,
    ModelAnswered,
    ModelCall,
    RolloutRequest,
    RolloutStarted,
    Task,
    Trajectory,
)
from rollcall.schemas.topics import Topics

POLICY = "bench"
TURNS = 8
NOW_MS = 1_750_000_000_000
HOPS = 4
SEEN = (
    "the corridor goes on; there is a door to the left and one ahead. What do you do, and why? " * 2
)
SEEN_TOKENS = 32
PREPARED = 512
"""The number of prepared answers, so that batches compress no better than real ones."""


class Instant:
    """An environment with a constant observation and its time."""

    replayable = False

    def __init__(self, turns: int = TURNS) -> None:
        self.left = turns

    def open(self, seed: int) -> Observation:
        del seed
        return Observation(SEEN, info=_now())

    def step(self, action: str) -> Observation:
        del action
        self.left -= 1
        return Observation(SEEN, terminated=self.left <= 0, info=_now())

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""


def _now() -> dict[str, object]:
    return {"at_ns": time.perf_counter_ns()}


def request(rollout_id: str, turns: int = TURNS) -> RolloutRequest:
    """Return a request with `turns` turns."""
    task = Task(
        environment="rollcall.compose.benchmarks.load:Instant",
        environment_config=json.dumps({"turns": turns}),
    )
    limits = Limits(max_turns=turns)
    return RolloutRequest(rollout_id, task, policy_id=POLICY, run_id="bench", limits=limits)


def answers(tokens: int, count: int = PREPARED) -> list[ModelAnswered]:
    """Return prepared answers of `tokens` tokens, random but reproducible."""
    draw = np.random.default_rng(7)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)

    def answer() -> ModelAnswered:
        return ModelAnswered(
            text=draw.choice(letters, 4 * tokens).tobytes().decode(),
            added_ids=draw.integers(0, 150_000, SEEN_TOKENS, np.int32).tobytes(),
            token_ids=draw.integers(0, 150_000, tokens, np.int32).tobytes(),
            logprobs=(-draw.exponential(0.7, tokens)).astype(np.float32).tobytes(),
            versions=bytes(4 * tokens),
            finish_reason="stop",
            policy_id=POLICY,
            sequence=0,
            engine="scripted",
            precision="float32",
            template_digest="bench",
        )

    return [answer() for _ in range(count)]


def script(tokens: int) -> Script:
    """Return a script that answers any call at once with a prepared answer."""
    stock = answers(tokens)
    return lambda call: stock[call.seed % len(stock)]


class Player:
    """A player of rollouts without a log: the fold's commands are answered at once."""

    def __init__(self, codec: Codec, tokens: int, topics: Topics, partition: int = 0) -> None:
        self.codec = codec
        self.topics = topics
        self.folded = Journal(partition, FoldContext(program_of, Random), "bench")
        self._answer = script(tokens)
        self._offset = -1
        self._requests = 0

    def play(self, request: RolloutRequest) -> Iterator[tuple[ModelCall | EnvironmentStep, bytes]]:
        """Yield each command with its encoded answer, which is folded before the next one."""
        commands = self._fold(self._start(request)).commands
        while commands:
            (command,) = commands
            written = self._encode(self.answer(command))
            yield command, written
            commands = self._fold(written).commands

    def journal(self, request: RolloutRequest) -> Iterator[bytes]:
        """Yield all entries of a rollout's journal, each folded before the next one."""
        written = self._start(request)
        while True:
            yield written
            output, *_ = self._fold(written).outputs
            if isinstance(output, Trajectory):
                return
            written = self._encode(output if isinstance(output, Event) else self.answer(output))

    def _start(self, request: RolloutRequest) -> bytes:
        number, self._requests = self._requests, self._requests + 1
        started = RolloutStarted(request, number, number)
        return self._encode(Event.decision(request.rollout_id, 1, "bench", started))

    def _encode(self, event: Event) -> bytes:
        return self.codec.encode(self.topics.events, event)

    def _fold(self, written: bytes) -> AppliedEvent:
        self._offset += 1
        event = self.codec.decode(written, Event)
        return self.folded.apply_event(event, self._offset, NOW_MS)

    def answer(self, command: ModelCall | EnvironmentStep) -> Event:
        """Return a worker's answer to a command."""
        body = self._answer(command) if isinstance(command, ModelCall) else _stepped(command)
        return event_of(command, body, "bench")  # type: ignore[arg-type]


def _stepped(step: EnvironmentStep) -> EnvironmentStepped:
    index = step.index + (step.kind == "step")
    turns = json.loads(step.environment_config)["turns"]
    info = json.dumps(_now())
    return EnvironmentStepped(SEEN, terminated=index >= turns, info=info, index=index)


def hops(codec: Codec, topics: Topics, tokens: int, rollout_id: str) -> list[bytes]:
    """Return the values of one rollout's turns in their order on the log."""
    values = []
    for command, answer in Player(codec, tokens, topics).play(request(rollout_id)):
        values += [codec.encode(_topic(topics, command), command), answer]
    return values[2:]  # the reset belongs to no turn


def _topic(topics: Topics, command: ModelCall | EnvironmentStep) -> str:
    return topics.calls(POLICY) if isinstance(command, ModelCall) else topics.steps


HEADERS = tuple(
    hot_headers(kind, bytes(16))
    for kind in ("ModelCall", "ModelAnswered", "EnvironmentStep", "EnvironmentStepped")
)
"""The headers of the four hops, as long as real ones."""
