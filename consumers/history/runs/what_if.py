"""Trains the recorded batches of some steps again under another rule from the same checkpoint.

Exact: the checkpoint with its optimiser, the batches in their order, and how they were judged when
they were collected. Not exact: another rule would soon have sampled other trajectories; these were
sampled by the original policy, and the deviation grows with the number of steps. So both rules are
trained side by side, and the distance of their weights is reported after each step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import sqrt

import numpy as np

from rollcall.consumers.history.runs.retraining import RetrainingPlan
from rollcall.consumers.history.runs.training_record import samples_of
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.samples import Sample

COLLECTED = (
    "group_size",
    "groups_per_step",
    "batch",
    "redundancy",
    "over_provision",
    "max_staleness",
    "capacity_groups",
    "recorded",
    "share",
    "replay_ratio",
    "filters",
    "missing",
    "on_stale",
    "temperature",
    "steps",
    "seed",
)
"""Settings that decided which batches were collected, and how; they
cannot be changed afterwards."""


@dataclass(frozen=True, slots=True)
class OtherwiseStep:
    """One step, under the original and the other rule."""

    step: int
    version: int
    trajectories: int
    left_out: int
    """The number of recorded trajectories whose tasks were to be left out."""
    exact: bool | None
    """True if the original rule gives the announced bits; None if these
    are not announced any more."""
    then: Mapping[str, float]
    """Metrics under the original rule."""
    now: Mapping[str, float]
    distance: float
    """The Euclidean distance of the weights between the two."""
    moved: float
    """The distance from the weights at the beginning to those of the
    original rule, for comparison."""


@dataclass(eq=False)
class WhatIf:
    """Both learners; `train` runs the steps."""

    plan: RetrainingPlan
    config: LearnerConfig
    codec: Codec
    without_task: str = ""
    """A pattern of task ids to leave out, in the syntax of file names."""

    def __post_init__(self) -> None:
        self.then = self.plan.learner(self.plan.run.config)
        self.now = self.plan.learner(self.config)

    def train(self) -> Iterator[OtherwiseStep]:
        """Yield each step after training it; steps before the first requested one use the
        original rule. Raises Refused for a step without trajectories left."""
        curation, reencode = self.plan.curation(self.then), self.plan.run.reencoder()
        began = self.then.tensors()
        for number in self.plan.numbers():
            step = self.plan.branch.steps[number]
            samples = samples_of(step, self.plan.records, self.codec, curation, reencode)
            self.then.follow_pieces(step.metrics)
            then = self.then.step(samples, version=step.version)
            if number < self.plan.first:
                self.now.load(self.then.state())
                began = self.then.tensors()
                continue
            left = self._left(samples, number)
            now = self.now.step(left, version=step.version)
            tensors, announced = self.then.tensors(), self.plan.announced[step.version]
            yield OtherwiseStep(
                step=number,
                version=step.version,
                trajectories=len(left),
                left_out=len(samples) - len(left),
                exact=self.plan.run.publishing.digest(tensors, announced) == announced
                if announced
                else None,
                then=then,
                now=now,
                distance=distance(tensors, self.now.tensors()),
                moved=distance(began, tensors),
            )

    def states(self) -> tuple[LearnerState, LearnerState]:
        """Return the states of the original rule and of the other rule."""
        return self.then.state(), self.now.state()

    def _left(self, samples: tuple[Sample, ...], number: int) -> tuple[Sample, ...]:
        if not self.without_task:
            return samples
        left = tuple(s for s in samples if not fnmatchcase(s.task_id, self.without_task))
        if not left:
            msg = (
                f"step {number} was trained on tasks that all match {self.without_task!r}; nothing "
                "of it is left; give a narrower --without-task, or other steps"
            )
            raise Refused(msg)
        return left


def require_trainable(then: LearnerConfig, now: LearnerConfig) -> None:
    """Raise Refused for a configuration that would have collected other batches."""
    before, after = then.flat(), now.flat()
    for key in COLLECTED:
        if before[key] != after[key]:
            msg = (
                f"--with learner.{key}: it decided what was collected, and the batches are "
                "recorded; change what is made of them, such as learner.loss or learner.lr"
            )
            raise Refused(msg)


def distance(ours: Mapping[str, RawTensor], theirs: Mapping[str, RawTensor]) -> float:
    """Return the Euclidean distance over all parameters, float32."""
    total = 0.0
    for name, tensor in ours.items():
        if tensor.dtype != "F32":  # the configuration of an adapter
            continue
        gap = _values(tensor) - _values(theirs[name])
        total += float(gap @ gap)
    return sqrt(total)


def _values(tensor: RawTensor) -> np.ndarray:
    return np.frombuffer(tensor.data, dtype="<f4").astype(np.float64)
