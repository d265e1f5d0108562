"""Trains some steps of a run again from the record, and compares the weights.

The record of a step determines it: its trajectories are fetched by position and processed as in the
trainer: `judge`, then `Learner.step`, in the order of the record. A step has no other inputs:
curation chose the trajectories, and the checkpoint contains the state of torch's generator. Sums
over ranks depend on their number, so the same number has to train; the caller makes the learner.
Nothing is written, neither to topics nor to the run's folder.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.training_record import (
    CHANGED,
    RecordPlace,
    TrainedRun,
    fetch,
    samples_of,
    steps_of,
)
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.bounded import whole_number
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import TrainStep
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.schemas.weights import RawTensor, weights_digest
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.machine import differing, machine
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.branches import Branch, branch_of
from rollcall.trainer.weights.publication import widened


@dataclass(frozen=True, slots=True)
class RetrainedStep:
    """The result of one step, trained again."""

    step: int
    version: int
    trajectories: int
    asked: bool
    """False for a step between the checkpoint and the first requested one."""
    digest: str
    announced: str
    """Empty if neither train.steps nor policy.versions has it any more."""
    difference: float | None = None
    """The largest absolute difference of a parameter; None if the original weights are gone."""

    @property
    def identical(self) -> bool | None:
        """True if the digests are equal; None if there is none to compare with."""
        return self.digest == self.announced if self.announced else None


@dataclass(frozen=True, slots=True)
class RetrainingPlan:
    """The steps to train, and their starting point."""

    run: TrainedRun
    branch: Branch
    start: Checkpoint
    path: Path
    first: int
    last: int
    records: dict[RecordPlace, Record]
    announced: dict[int, str]
    ranks: int
    """The number of processes that trained these steps."""

    def numbers(self) -> range:
        return range(self.start.state.step + 1, self.last + 1)

    def learner(self, config: LearnerConfig) -> Learner:
        """Return a learner in the state before the first step, with the given configuration."""
        past = partial(weights_files.of_version, self.run.weights)
        learner = Learner(str(self.run.policy), config, past=past)
        learner.load(self.start.state)
        return learner

    def curation(self, learner: Learner) -> Curation:
        """Return the run's rules for judging trajectories."""
        return replace(
            self.run.config.curation(self.run.run_id, self.run.policy_id),
            vocabulary=learner.vocabulary,
            context=learner.context,
        )


def plan(
    history: History, run: TrainedRun, first: int, last: int, version: int | None = None
) -> RetrainingPlan:
    """Find all inputs before any training; raises Refused, one line."""
    if run.config.interrupts:
        msg = (
            f"run {run.run_id!r} has old_logprobs 'interrupt', which goes by what was held when a "
            "step was taken, and no record says that; its steps cannot be trained again; begin a "
            "run with old_logprobs 'snapshot'"
        )
        raise Refused(msg)
    steps = list(steps_of(history, run))
    if not steps:
        topic = history.topics.train_steps
        msg = f"run {run.run_id!r} has no record in {topic}: it has trained no step"
        raise Refused(msg)
    branch = branch_of(steps, version)
    branch.require(first, last)
    path, start = _checkpoint(run, branch, first)
    checkpoints.require_recipe(path, run.config.digest(), CHANGED)
    wanted = [branch.steps[number] for number in range(start.state.step + 1, last + 1)]
    records = fetch(history.log, wanted)
    announced = {step.version: step.weights_digest for step in wanted}
    ranks = _ranks(run, wanted)
    return RetrainingPlan(run, branch, start, path, first, last, records, announced, ranks)


def train(plan: RetrainingPlan, codec: Codec, learner: Learner) -> Iterator[RetrainedStep]:
    """Yield each step after training it, with a learner in the state before the first one."""
    run = plan.run
    curation, reencode = plan.curation(learner), run.reencoder()
    for number in plan.numbers():
        step = plan.branch.steps[number]
        samples = samples_of(step, plan.records, codec, curation, reencode)
        learner.follow_pieces(step.metrics)
        learner.step(samples, version=step.version)
        tensors = learner.tensors()
        announced = plan.announced[step.version]
        digest = run.publishing.digest(tensors, announced)
        difference: float | None = 0.0
        if digest != announced:
            then = _weights_of(run, step.version, announced)
            ours = widened(run.publishing.of(tensors))
            difference = _difference(ours, then) if then else None
        yield RetrainedStep(
            step=number,
            version=step.version,
            trajectories=len(refs_of(step)),
            asked=number >= plan.first,
            digest=digest,
            announced=announced,
            difference=difference,
        )


def environment_differences(plan: RetrainingPlan) -> list[str]:
    """Describe differences of the machine from that of the original steps; they may change bits."""
    now = machine("cpu") | {"ranks": str(plan.ranks)}
    steps = [plan.branch.steps[number] for number in plan.numbers()]
    return list(dict.fromkeys(text for step in steps for text in differing(step.machine, now)))


def report(plan: RetrainingPlan, threads: int, steps: Sequence[RetrainedStep]) -> dict[str, Any]:
    """Return the whole report as plain values, for JSON."""
    return {
        "run_id": plan.run.run_id,
        "branch": plan.branch.version,
        "checkpoint": plan.path.name,
        "checkpoint_step": plan.start.state.step,
        "threads": threads,
        "ranks": plan.ranks,
        "otherwise": environment_differences(plan),
        "differing": [step.step for step in steps if step.identical is False],
        "steps": [asdict(step) | {"identical": step.identical} for step in steps],
    }


def _ranks(run: TrainedRun, steps: Sequence[TrainStep]) -> int:
    """Return the number of ranks that trained these steps; raises Refused if it varies."""
    counts = {step.step: whole_number(step.machine.get("ranks", "1")) or 1 for step in steps}
    if len(set(counts.values())) > 1:
        first = counts[steps[0].step]
        number = next(number for number, count in counts.items() if count != first)
        msg = (
            f"run {run.run_id!r} has trained step {steps[0].step} by {first} ranks and step "
            f"{number} by {counts[number]}, and one call trains by as many as did; ask for steps "
            "of one count, from a checkpoint between"
        )
        raise Refused(msg)
    return counts[steps[0].step]


def _checkpoint(run: TrainedRun, branch: Branch, first: int) -> tuple[Path, Checkpoint]:
    """Return the newest undamaged checkpoint of the branch before step `first`."""
    kept = checkpoints.kept(run.directory / "checkpoints")
    at = {branch.step_of(version): path for version, path in kept.items()}
    before = sorted(
        (number for number in at if number is not None and number < first), reverse=True
    )
    damaged = []
    for number in before:
        try:
            return at[number], checkpoints.load(at[number])
        except checkpoints.UNREADABLE as error:
            damaged.append(f"{at[number].name}: {type(error).__name__}: {error}")
    kept_steps = sorted(number for number in at if number is not None)
    has = f"after steps {', '.join(map(str, kept_steps))}" if kept_steps else "none of this branch"
    bad = f"; damaged: {'; '.join(damaged)}" if damaged else ""
    least = next((number + 1 for number in kept_steps if number not in before), None)
    remedy = f"; begin with step {least}" if least is not None and least in branch.steps else ""
    msg = (
        f"run {run.run_id!r} has no checkpoint from before step {first}; kept are those "
        f"{has}{bad}{remedy}"
    )
    raise Refused(msg)


def _weights_of(run: TrainedRun, version: int, digest: str) -> dict[str, RawTensor] | None:
    """Return announced weights, from the weights folder or the version's
    checkpoint; None if gone."""
    for tensors in _candidates(run, version):
        if weights_digest(tensors, digest) == digest:
            return widened(tensors)
    return None


def _candidates(run: TrainedRun, version: int) -> Iterable[Mapping[str, RawTensor]]:
    published = weights_files.published_of(run.weights, version)
    if published is not None:
        yield published
    kept = checkpoints.kept(run.directory / "checkpoints")
    if version in kept:
        yield run.publishing.of(checkpoints.load(kept[version]).state.weights)


def _difference(ours: dict[str, RawTensor], theirs: dict[str, RawTensor]) -> float:
    """Return the largest absolute difference of a parameter; both are float32."""
    return max(
        float(np.abs(_values(tensor) - _values(theirs[name])).max(initial=0.0))
        for name, tensor in ours.items()
        if tensor.dtype == "F32"  # the configuration of an adapter is none
    )


def _values(tensor: RawTensor) -> np.ndarray:
    return np.frombuffer(tensor.data, dtype="<f4").astype(np.float64)
