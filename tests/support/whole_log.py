"""A log that holds every invariant until a test harms it, and what the audit says of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.report import Report
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import (
    ModelCall,
    ScoredTrajectory,
    TrainStep,
    TrajectoryRef,
)
from tests.support.lake import crossing, walk
from tests.support.rig import Rig


def audited(rig: Rig, *, drained: bool = True, **options: Any) -> Report:
    return audit(rig, drained=drained, **options)


def found(report: Report) -> set[str]:
    return {breach.invariant for breach in report.breaches}


class Whole(Rig):
    """Some rollouts that ran in peace, on one partition, and two training steps made of them."""

    def __init__(self, rollouts: int = 4, scorings: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.loops = [
            self.agents(),
            self.models(ScriptedEngine("p", stumbling())),
            self.environments(),
            self.rewards(),
        ]
        for number in range(rollouts):
            asked = crossing(number, f"g{number // 2}")
            self.ask(replace(asked, run_id="run", purpose="train", scorings=scorings))
            self.settle(*self.loops)
            self.clock.pass_by(2.0)
        self.commit(*self.loops)
        if rollouts:
            self.train(1, 0, 1)
            self.train(2, 2, 3)

    def train(self, version: int, *offsets: int, parent: int | None = None, **over: Any) -> None:
        """Write a step made of the scored records at these offsets."""
        records = {r.offset: r for r in self.log.all(self.topics.scored)}
        refs = []
        for offset in offsets:
            scored = self.codec.decode(records[offset].value, ScoredTrajectory)
            refs.append(ref_to(scored, self.topics.scored, offset))
        step = TrainStep("p", "run", version, version, parent or version - 1, tuple(refs), {})
        self.write(self.topics.train_steps, "p", replace(step, **over))

    def lose(self, topic: str, offset: int) -> None:
        self.log.topics[topic][0].records[offset - self.log.topics[topic][0].start] = None

    def offset_of(self, topic: str, kind: type, wish: Callable[[Any], bool]) -> int:
        """Where the first record lies that is as wished."""
        for record in self.log.all(topic):
            if wish(self.codec.decode(record.value, kind)):
                return record.offset
        raise AssertionError(topic)

    def commit_by_hand(self, group: str, topic: str, offset: int) -> None:
        self.log.group(group).committed[topic, 0] = offset, ""


def ref_to(scored: ScoredTrajectory, topic: str, offset: int) -> TrajectoryRef:
    trajectory = scored.trajectory
    return TrajectoryRef(topic, 0, offset, trajectory.rollout_id, trajectory.attempt)


def stumbling() -> Callable[[ModelCall], str]:
    """Walks, but the first try of every rollout's first call fails."""

    def say(call: ModelCall) -> str:
        if call.position == 1 and call.tries == 0:
            code = "overloaded"
            raise WorkFailed(code, "once", retriable=True)
        return walk(call)

    return say
