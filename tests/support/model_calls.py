"""Calls to a model server by hand, an engine that counts what it is asked, calls on the log."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rollcall.compose.cluster import Cluster
from rollcall.consumers.log.reading import read_all
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import (
    Event,
    Message,
    ModelAnswered,
    ModelCall,
    PolicyVersion,
    Sampling,
    WeightsFile,
)
from tests.support.rig import Rig

FAR_MS = 2_000_000_000_000


class Counting(ScriptedEngine):
    """Counts what it is asked; may wait with its answers, and fail to adopt."""

    def __init__(self, version: int = 0, policy_id: str = "p") -> None:
        super().__init__(policy_id, lambda call: f"to {call.position}", version=version)
        self.added: list[ModelCall] = []
        self.adopted: list[int] = []
        self.asleep = False
        self.trouble: Exception | None = None

    def add(self, call: ModelCall) -> None:
        self.added.append(call)
        super().add(call)

    def busy(self) -> bool:
        return not self.asleep and super().busy()

    def stage(self, version: PolicyVersion) -> None:
        if self.trouble:
            raise self.trouble
        super().stage(version)

    def adopt(self) -> None:
        super().adopt()
        self.adopted.append(self.version)


def call_of(rollout_id: str = "r", position: int = 0, tries: int = 0, **fields: Any) -> ModelCall:
    place = rollout_id, 1, position, tries
    call = ModelCall(
        *place, command_id(*place), b"digest", 0, FAR_MS, "sample", "p", 0,
        (Message("user", "hi"),), Sampling(), 5, b"",
    )  # fmt: skip
    return replace(call, **fields)


def send(rig: Rig, *calls: ModelCall) -> None:
    for call in calls:
        rig.write(rig.topics.calls("p"), call.rollout_id, call, 0)


def announce(
    rig: Rig,
    version: int,
    policy_id: str = "p",
    weights_digest: str = "",
    uri: str = "file:///nowhere",
) -> None:
    weights = WeightsFile(uri, "", 0, "", version)
    word = PolicyVersion(
        policy_id, version, version - 1, "run", 0, weights_digest, weights, b"\0" * 4, b""
    )
    rig.write(rig.topics.versions, policy_id, word, 0)


def answers(rig: Rig) -> list[Any]:
    return [event.body for event in rig.read(rig.topics.events, Event)]


def called_again(cluster: Cluster, policies: Iterable[str]) -> int:
    """Model calls of these policies that were written after their answer."""
    answered: dict[tuple[str, int, int], int] = {}
    for record in read_all(cluster.log, [cluster.topics.events]):
        event = cluster.codec.decode(record.value, Event)
        if isinstance(event.body, ModelAnswered):
            place = event.rollout_id, event.attempt, event.position
            answered.setdefault(place, record.timestamp_ms)
    again = 0
    for record in read_all(cluster.log, [cluster.topics.calls(name) for name in policies]):
        call = cluster.codec.decode(record.value, ModelCall)
        at = answered.get((call.rollout_id, call.attempt, call.position))
        again += call.kind == "sample" and at is not None and at < record.timestamp_ms
    return again
