"""Versions in use are read during changes, and none is missed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Commit
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import (
    Consumed,
    Event,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    Task,
)
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.checkpoints.resume_points import ResumePoint
from tests.support.journals import sampled_by
from tests.support.scored_trajectories import scored

TOPICS, CODEC = Topics("m."), Codec(LocalRegistry())
POLICY, VERSION = "policy", 3
RUN = TrainingRun("run", POLICY, Path("nowhere"), {}, "scoring", AdmissionRule(0, 1, 1, 1))
FIRST = ResumePoint({0: Consumed("trajectories.scored", 0, 0, ())}, frozenset())
TRAINED = ResumePoint({0: Consumed("trajectories.scored", 0, 1, ())}, frozenset())
POOLED = replace(TRAINED, replayed=frozenset({(0, 0)}))


class MovingLog(MemoryLog):
    """A log that changes at every question about it."""

    happens: Callable[[], None] = staticmethod(lambda: None)

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        self.happens()
        return super().commits(group, topic)

    def reader(self, *args: Any, **given: Any) -> Any:
        self.happens()
        return super().reader(*args, **given)


@dataclass
class Life:
    """One rollout of the run, pinned to a version, from its request to its score."""

    topics: Topics = TOPICS
    codec: Codec = CODEC

    def __post_init__(self) -> None:
        self.log = MovingLog(wanted("m.", [POLICY], partitions=1))
        made = scored("r", version=VERSION)
        self.request = RolloutRequest(
            "r", Task(), policy_id=POLICY, policy_version=VERSION, run_id="run", purpose="train"
        )
        trajectory = replace(made.trajectory, request=self.request)
        self.made = replace(made, trajectory=trajectory)
        self.coming = [
            lambda: self._append(self.topics.requests, self.request),
            lambda: self._say(RolloutStarted(self.request, 0, 0)),
            lambda: self._commit("agents", self.topics.requests),
            lambda: self._commit("agents", self.topics.events, Watermark(0).write()),
            lambda: self._say(sampled_by(VERSION)),
            lambda: self._say(RolloutFinished("finished")),
            lambda: self._append(self.topics.trajectories, trajectory),
            lambda: self._commit("agents", self.topics.events, Watermark(3).write()),
            lambda: self._append(self.topics.scored, self.made),
            lambda: self._commit("rewards.scoring", self.topics.trajectories),
        ]

    def go_on(self, stages: int = 1) -> None:
        for happens in self.coming[:stages]:
            happens()
        del self.coming[:stages]

    def goes_on_later(self, at: int, stages: int) -> None:
        """Advance by this many stages just before the n-th question to the log."""
        asked = count()
        self.log.happens = lambda: self.go_on(stages if next(asked) == at else 0)

    def in_use(self, *points: ResumePoint) -> set[int]:
        reading = VersionsInUse(self, POLICY)
        use = reading.announced()
        reading.add_rollouts(use, RUN, points)
        needs = use.needs(checkpoints=(), awaited=())
        every = (needs.requested, needs.open, needs.unscored, needs.buffered, needs.replayed)
        return {version for each in every for version in each}

    def _say(self, body: Any) -> None:
        event = Event("r", 1, 0, 0, b"", b"", "agents", body)
        self._append(self.topics.events, event)

    def _append(self, topic: str, message: Any) -> None:
        self.log.append(topic, b"r", self.codec.encode(topic, message))

    def _commit(self, group: str, topic: str, word: str = "") -> None:
        end = self.log.bounds(topic)[0][1]
        self.log.commit_for(f"m.{group}", [Commit(topic, 0, end, word)])


STAGES = len(Life().coming)


QUESTIONS = 8
"""That one reading asks the log."""


@pytest.mark.parametrize("begun", range(1, STAGES))
def test_a_rollout_that_progresses_during_the_read_is_never_missed(begun: int) -> None:
    for at, stages in product(range(QUESTIONS), (1, 2, 3)):
        life = Life()
        life.go_on(begun)
        life.goes_on_later(at, stages)

        assert life.in_use(FIRST) == {VERSION}, f"{stages} further before question {at}"


def test_all_versions_are_unread_before_the_first_checkpoint() -> None:
    life = Life()
    life.go_on(STAGES)

    assert life.in_use() == {VERSION}


def test_trained_versions_are_in_use_while_a_checkpoint_would_reread_them() -> None:
    life = Life()
    life.go_on(STAGES)

    assert life.in_use(TRAINED, FIRST) == {VERSION}
    assert life.in_use(TRAINED, POOLED) == {VERSION}
    assert not life.in_use(TRAINED, TRAINED)
    life.log.delete_before(life.topics.scored, 0, 1)  # retention
    assert not life.in_use(TRAINED, POOLED)
