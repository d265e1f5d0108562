"""A run in memory of rollouts of very different lengths, with a learner that only looks at them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import continuations
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.agents.worker import CONTROL_EVERY_S
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.training.trainer import Trainer
from rollcall.consumers.training.trainer_setup import TrainerSetup
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.producers.curators.curators import curators_of
from rollcall.sandbox.environment import Observation
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.ids import split_continued_id
from rollcall.schemas.messages import (
    Control,
    Limits,
    ModelCall,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    TrainStep,
    Trajectory,
)
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.samples import Sample
from tests.support.staged_run import Counting

POLICY = "policy"
SCORING = "environment_return"
LONGEST = 14
TASKS = 1000


class Walk:
    """Takes as many steps as its first action says."""

    replayable = True

    def __init__(self) -> None:
        self.left = 0

    def open(self, seed: int) -> Observation:
        self.left = -1
        return Observation(f"walk {seed}")

    def step(self, action: str) -> Observation:
        self.left = (int(action) % LONGEST if self.left < 0 else self.left) - 1
        return Observation(f"{self.left} left", reward=1.0, terminated=self.left < 0)

    def close(self) -> None:
        """There is nothing to give back."""


class OneWayWalk(Walk):
    """One that cannot be walked again."""

    replayable = False


class Looking(Counting):
    """Keeps what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Sample, ...]] = []
        self.noted: set[tuple[str, int]] = set()
        """Of which rollout, under its first id, the tokens of which version were scored."""

    def cache_logprobs(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            name, _ = split_continued_id(sample.scored.trajectory.rollout_id)
            self.noted.add((name, self.version))

    def step(self, samples: Sequence[Sample], *, version: int) -> dict[str, float]:
        self.seen.append(tuple(samples))
        return super().step(samples, version=version)


def number(call: ModelCall) -> str:
    return str(call.seed % 1000)


class UnevenRun:
    """Everybody but the learner is real; the trainer may be replaced."""

    def __init__(
        self,
        directory: Path,
        config: LearnerConfig,
        *,
        environment: str = "Walk",
        max_running: int = 4096,
        curator: object = "",
    ) -> None:
        self.directory, self.config = directory, config
        self.max_running, self.curator = max_running, curator
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", [POLICY], partitions=2))
        self.codec = Codec(LocalRegistry())
        settings = Settings(state_dir=directory, cache_dir=directory / "cache")
        self.factory = WorkerFactory(self.log, self.codec, self.topics, settings, watched=False)
        agents = self.factory.agents("agents")
        # What is said on `control` is heard after so many turns, however quick the machine is.
        self.now = time.time()
        agents.role.wall = lambda: self.now
        self.loops = [
            agents,
            self.factory.models("models", ScriptedEngine(POLICY, number)),
            self.factory.environments("environments"),
            self.factory.rewards("rewards", [SCORING], SCORING),
        ]
        self.template = RolloutRequest(
            "",
            Task(environment=f"{__name__}:{environment}"),
            policy_id=POLICY,
            run_id="run",
            purpose="train",
            limits=Limits(max_turns=LONGEST + 1),
        )
        self.trainer = self.begin()

    def begin(self) -> Trainer:
        """Another trainer goes on; the one before is gone without a word."""
        config = self.config
        batch = config.fresh_groups * config.members
        rule = AdmissionRule(
            config.staleness.bound, batch, self.max_running, config.members,
            config.groups.over_provision, config.refills,
        )  # fmt: skip
        run = TrainingRun("run", POLICY, self.directory, {}, SCORING, rule, config.steps)
        learner: Any = Looking()
        self.learner: Looking = learner
        self.trainer = TrainerSetup(
            "t", self.log, self.codec, self.topics, self.log.publisher(), learner, config, run,
            Draws(self.template, 7, config.members, (0, TASKS)), None,
            curators_of(self.curator, TASKS),
            in_use=VersionsInUse(self.factory, POLICY),
            continue_=continuations(self.factory, config),
        ).open()  # fmt: skip
        return self.trainer

    def turn(self) -> None:
        self.now += CONTROL_EVERY_S
        for loop in self.loops:
            loop.turn(0.0)
        self.trainer.turn(0.0)

    def train(self, steps: int) -> None:
        for _ in range(5_000):
            if self.trainer.learner.steps_done >= steps:
                return
            self.turn()
        pytest.fail(f"stands still after step {self.trainer.learner.steps_done}")

    def settle(self) -> None:
        """Let all that was asked for come to its end."""
        for _ in range(300):
            for loop in self.loops:
                loop.turn(0.0)

    def close(self) -> None:
        for loop in self.loops:
            loop.stop(1.0)

    def read(self, topic: str, kind: type) -> list[Any]:
        values = [record.value for record in self.log.all(topic) if record.value is not None]
        return [self.codec.decode(value, kind) for value in values]

    def steps(self) -> list[TrainStep]:
        return self.read(self.topics.train_steps, TrainStep)

    def asked(self) -> list[RolloutRequest]:
        return self.read(self.topics.requests, RolloutRequest)

    def cancelled(self) -> list[Control]:
        return self.read(self.topics.control, Control)

    def trajectories(self) -> list[Trajectory]:
        return self.read(self.topics.trajectories, Trajectory)

    def scored(self) -> list[ScoredTrajectory]:
        return self.read(self.topics.scored, ScoredTrajectory)
