"""Optimiser steps per hour with rollouts in flight during training, against synchronous training.

The real trainer, agents, models, environments and rewards take turns on the in-memory log; only
the policy, the environment and the learner are fakes with fixed durations. Both modes have the same
slots and the same rollouts with the same latencies. In synchronous mode (`max_staleness` 0) every
step waits for the last straggler of its batch; at 4 the others continue meanwhile. While the
learner trains, all others take turns, as they would in separate processes.

The ceiling is the slower of sampling without training, and of training without sampling.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rollcall.compose.benchmarks import slow_rollouts
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.settings import Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.training.trainer import Trainer
from rollcall.consumers.training.trainer_setup import TrainerSetup
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.schemas.topics import Topics, wanted
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.canary import Canary
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import Sample

STALENESS = 4
UNBOUNDED = 1_000_000
WARM_STEPS = 4
"""Steps before the measurement; at first all rollouts are young, and the short ones end first."""
PAUSE_S = 0.002
SCORING = "environment_return"


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes and durations of both modes."""

    groups: int = 16
    """The groups of a step; there is a slot for each of their rollouts."""
    group_size: int = 4
    train_s: float = 0.5
    """The seconds of a training step."""
    median_s: float = slow_rollouts.MEDIAN_S

    @property
    def slots(self) -> int:
        return self.groups * self.group_size


SCALE = Scale()


@dataclass(frozen=True, slots=True)
class ModePace:
    """The speed of one mode after the warm-up."""

    steps_per_hour: float
    busy: float
    """The share of slots with a rollout."""
    train_s: float
    """The seconds of a training step."""
    dropped: int
    """The trajectories that were not trained on."""
    used: int

    def note(self, what: str) -> str:
        return (
            f"{what}: {self.steps_per_hour:,.0f} steps/h, slots {self.busy:.1%} busy, "
            f"{self.dropped} trajectories dropped beside {self.used} used"
        )


class SleepingLearner:
    """A fake learner whose steps take time and change nothing."""

    vocabulary = context = 0
    device = "cpu"

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s
        self.version = self.steps_done = 0
        self.trained_s = 0.0
        self.meanwhile: Callable[[float], None] = time.sleep
        """A function that lets the other workers run for that many seconds."""

    def step(self, samples: Sequence[Sample], *, version: int) -> dict[str, float]:
        began = time.monotonic()
        self.meanwhile(self.train_s)
        self.trained_s += time.monotonic() - began
        oldest = min(sample.min_version for sample in samples)
        staleness = float(self.version - oldest)
        self.version, self.steps_done = version, self.steps_done + 1
        return {"reward_mean": 0.0, "staleness_mean": staleness, "loss": 0.0}

    def canary(self) -> Canary:
        return Canary(pack_ids([0]), pack_logprobs([]))

    def tensors(self) -> dict[str, RawTensor]:
        return {"version": RawTensor("I32", (1,), pack_ids([self.version]))}

    def state(self) -> LearnerState:
        none = {"none": RawTensor("U8", (1,), b"\0")}
        return LearnerState(self.steps_done, self.version, 0, self.tensors(), none, none)

    def load(self, state: LearnerState) -> None:
        self.steps_done, self.version = state.step, state.version


@dataclass(eq=False)
class Bench:
    """One running benchmark."""

    loops: Sequence[Loop]
    trainer: Trainer
    learner: SleepingLearner
    slots: int
    busy_s: float = 0.0
    _seen: float = 0.0

    def others(self, for_s: float) -> None:
        """Let all but the trainer take turns for `for_s` seconds, at least once."""
        until = time.monotonic() + for_s
        while True:
            moved = sum(loop.turn(0.0) for loop in self.loops)
            self._count()
            if time.monotonic() >= until:
                return
            if not moved:
                time.sleep(PAUSE_S)

    def to_step(self, steps: int) -> None:
        while self.learner.steps_done < steps:
            self.others(0.0)
            if not self.trainer.turn(0.0):
                time.sleep(PAUSE_S)

    def _count(self) -> None:
        now = time.monotonic()
        if self._seen:
            self.busy_s += (now - self._seen) * self.trainer.running() / self.slots
        self._seen = now

    def pace(self, warm: int, steps: int) -> ModePace:
        """Run to `warm` steps, then measure `steps` more."""
        self.to_step(warm)
        began, busy_s, trained_s = time.monotonic(), self.busy_s, self.learner.trained_s
        self.to_step(warm + steps)
        took = time.monotonic() - began
        buffer = self.trainer.buffer
        return ModePace(
            steps_per_hour=3600 * steps / took,
            busy=(self.busy_s - busy_s) / took,
            train_s=(self.learner.trained_s - trained_s) / steps,
            dropped=sum(tally.count for tally in buffer.drops().values()),
            used=buffer.used,
        )


def async_speedup(
    settings: Settings, *, steps: tuple[int, int] = (8, 24), scale: Scale = SCALE
) -> Figure:
    """Measure the ratio of steps per hour; `steps` are those measured synchronously and not."""
    alternating, flowing = steps
    synchronous = _pace(settings, scale, 0, 1, alternating)
    asynchronous = _pace(settings, scale, STALENESS, WARM_STEPS, flowing)
    sampling = _pace(settings, replace(scale, train_s=0.0), UNBOUNDED, WARM_STEPS, flowing)
    training = 3600 / asynchronous.train_s
    best = min(sampling.steps_per_hour, training)
    return Figure(
        asynchronous.steps_per_hour / synchronous.steps_per_hour,
        "times the steps/h",
        best / synchronous.steps_per_hour,
        notes=(
            synchronous.note("step by step"),
            asynchronous.note(f"at most {STALENESS} versions old"),
            f"sampling alone: {sampling.steps_per_hour:,.0f} steps/h; "
            f"training alone: {training:,.0f} steps/h",
        ),
    )


def _pace(settings: Settings, scale: Scale, staleness: int, warm: int, steps: int) -> ModePace:
    with tempfile.TemporaryDirectory(prefix="rollcall-") as directory:
        bench = bench_of(Path(directory), settings, scale, staleness)
        try:
            return bench.pace(warm, steps)
        finally:
            for loop in bench.loops:
                loop.role.close()


def bench_of(directory: Path, settings: Settings, scale: Scale, staleness: int) -> Bench:
    """Make a run that has not begun, in this directory."""
    topics = Topics(settings.prefix)
    log = MemoryLog(wanted(settings.prefix, [slow_rollouts.POLICY]))
    settings = settings.model_copy(update={"state_dir": directory})
    factory = WorkerFactory(log, Codec(LocalRegistry()), topics, settings, watched=False)
    loops = (
        factory.agents("agents"),
        factory.models("models", slow_rollouts.SlowEngine(scale.median_s)),
        factory.environments("environments"),
        factory.rewards("rewards", [SCORING], SCORING),
    )
    learner = SleepingLearner(scale.train_s)
    trainer = _trainer(factory, directory, scale, staleness, learner)
    bench = Bench(loops, trainer, learner, scale.slots)
    learner.meanwhile = bench.others
    return bench


def _trainer(
    factory: WorkerFactory, directory: Path, scale: Scale, staleness: int, learner: SleepingLearner
) -> Trainer:
    config = LearnerConfig(
        groups_per_step=scale.groups,
        group_size=scale.group_size,
        max_staleness=staleness,
        steps=UNBOUNDED,
    )
    rule = AdmissionRule(staleness, scale.slots, scale.slots, scale.group_size)
    run = TrainingRun("bench", slow_rollouts.POLICY, directory, {}, SCORING, rule)
    template = slow_rollouts.template("bench", scale.median_s)
    return TrainerSetup(
        "training",
        factory.log,
        factory.codec,
        factory.topics,
        factory.log.publisher(),
        cast(Learner, learner),
        config,
        run,
        Draws(template, 0, scale.group_size, (0, UNBOUNDED)),
        in_use=VersionsInUse(factory, slow_rollouts.POLICY),
    ).open()
