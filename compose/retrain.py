"""`rollcall retrain`: train some steps of a run again from the record, and compare the weights.

The law: what a step was made of is in its record, so it is fetched by place and goes the way that
the trainer's own samples go: `judge`, then `Learner.step`, in the order of the record. Nothing else
enters a step: curation chose the trajectories, and the generator of torch is in the checkpoint.
Nothing is written, to no topic and not into the run's folder.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compose.runs.run_folder import RunFolder
from compose.trained import CHANGED, Place, digests_of, fetch, samples_of, steps_of
from consumers.log.protocols import Log, Record
from schemas.codec import Codec
from schemas.errors import Refused, RollcallError
from schemas.topics import Topics
from schemas.trajectory_refs import refs_of
from schemas.weights import RawTensor, from_safetensors, weights_digest
from trainer import checkpoint as checkpoints
from trainer.branches import Branch, branch_of
from trainer.checkpoint import Checkpoint
from trainer.config import LearnerConfig
from trainer.machine import differing, machine
from trainer.step import Learner

STEPS = re.compile(r"(\d+)(?:\.\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Again:
    """One step, trained again."""

    step: int
    version: int
    trajectories: int
    asked: bool
    """False for a step between the checkpoint and the first that was asked for."""
    digest: str
    announced: str
    """Empty where neither train.steps nor policy.versions knows it any more."""
    difference: float | None = None
    """The largest absolute one of a parameter; None where the weights of then are gone."""

    @property
    def identical(self) -> bool | None:
        """None where there is nothing to compare with."""
        return self.digest == self.announced if self.announced else None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be trained, from where."""

    folder: RunFolder
    config: LearnerConfig
    branch: Branch
    start: Checkpoint
    path: Path
    first: int
    last: int
    records: dict[Place, Record]
    announced: dict[int, str]

    def numbers(self) -> range:
        return range(self.start.state.step + 1, self.last + 1)


def asked_for(text: str) -> tuple[int, int]:
    """`3..5`, or `3` for one; raises Refused."""
    found = STEPS.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        msg = f"--steps {text!r} is no range of steps; write a..b with 1 <= a <= b, such as 3..5"
        raise Refused(msg)
    return first, last


def plan(
    log: Log,
    codec: Codec,
    topics: Topics,
    folder: RunFolder,
    first: int,
    last: int,
    version: int | None = None,
) -> Plan:
    """Find everything that is needed before anything is trained; raises Refused, one line."""
    steps = list(steps_of(log, codec, topics, folder))
    if not steps:
        msg = f"run {folder.run_id!r} has no record in {topics.train_steps}: it has trained no step"
        raise Refused(msg)
    branch = branch_of(steps, version)
    branch.require(first, last)
    config = folder.learner()
    path, start = _checkpoint(folder, branch, first)
    checkpoints.require_recipe(path, config.digest(), CHANGED)
    wanted = [branch.steps[number] for number in range(start.state.step + 1, last + 1)]
    records = fetch(log, wanted)
    announced = {step.version: step.weights_digest for step in wanted}
    if not all(announced.values()):
        announced |= dict(digests_of(log, codec, topics, folder, set(announced)))
    return Plan(folder, config, branch, start, path, first, last, records, announced)


def train(plan: Plan, codec: Codec) -> Iterator[Again]:
    """Each step as soon as it is trained."""
    folder = plan.folder
    learner = Learner(str(folder.policy), plan.config)
    learner.load(plan.start.state)
    curation = replace(
        plan.config.curation(folder.run_id, folder.policy_id),
        vocabulary=learner.vocabulary,
        context=learner.context,
    )
    for number in plan.numbers():
        step = plan.branch.steps[number]
        learner.step(samples_of(step, plan.records, codec, curation), version=step.version)
        tensors = learner.tensors()
        digest, announced = weights_digest(tensors), plan.announced[step.version]
        difference: float | None = 0.0
        if digest != announced:
            then = _weights_of(folder, step.version, announced)
            difference = _difference(tensors, then) if then else None
        yield Again(
            number,
            step.version,
            len(refs_of(step)),
            number >= plan.first,
            digest,
            announced,
            difference,
        )


def otherwise(plan: Plan, now: Mapping[str, str]) -> list[str]:
    """What the steps were trained on then and are not now: their bits may differ for it."""
    steps = [plan.branch.steps[number] for number in plan.numbers()]
    return list(dict.fromkeys(text for step in steps for text in differing(step.machine, now)))


def report(plan: Plan, threads: int, done: Sequence[Again]) -> dict[str, Any]:
    """All of it as plain values, for JSON."""
    return {
        "run_id": plan.folder.run_id,
        "branch": plan.branch.version,
        "checkpoint": plan.path.name,
        "checkpoint_step": plan.start.state.step,
        "threads": threads,
        "otherwise": otherwise(plan, machine("cpu")),
        "differing": [again.step for again in done if again.identical is False],
        "steps": [asdict(again) | {"identical": again.identical} for again in done],
    }


def lines(plan: Plan, threads: int) -> Iterator[str]:
    """What is going to happen."""
    begin = plan.start.state.step + 1
    yield (
        f"run {plan.folder.run_id}, branch of version {plan.branch.version}: from checkpoint "
        f"{plan.path.name} (step {plan.start.state.step}), {threads} thread"
        f"{'' if threads == 1 else 's'}"
    )
    if begin < plan.first:
        last = plan.first - 1
        between = f"step {last} is" if begin == last else f"steps {begin}..{last} are"
        yield f"no checkpoint of step {last} was kept: {between} trained too"
    others = otherwise(plan, machine("cpu"))
    if others:
        yield f"the bits may differ, for this is not as it was: {'; '.join(others)}"


def line(again: Again) -> str:
    """One step's result."""
    if again.identical:
        verdict = "identical"
    elif not again.announced:
        verdict = "nothing to compare with: its digest is announced no more"
    elif again.difference is None:
        verdict = f"differs from {again.announced[:16]}; its weights file is gone"
    else:
        verdict = f"differs from {again.announced[:16]} by at most {again.difference:.3g}"
    return (
        f"step {again.step:>4}  version {again.version:>4}  {again.trajectories:>4} trajectories  "
        f"digest {again.digest[:16]}  {verdict}{'' if again.asked else ' (between)'}"
    )


# What the run's folder has


def _checkpoint(folder: RunFolder, branch: Branch, first: int) -> tuple[Path, Checkpoint]:
    """The newest whole checkpoint of the branch from before step `first`."""
    kept = checkpoints.kept(folder.directory / "checkpoints")
    at = {branch.step_of(version): path for version, path in kept.items()}
    before = sorted(
        (number for number in at if number is not None and number < first), reverse=True
    )
    damaged = []
    for number in before:
        try:
            return at[number], checkpoints.load(at[number])
        except (RollcallError, OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{at[number].name}: {type(error).__name__}: {error}")
    there = sorted(number for number in at if number is not None)
    has = f"after steps {', '.join(map(str, there))}" if there else "none of this branch"
    bad = f"; damaged: {'; '.join(damaged)}" if damaged else ""
    least = next((number + 1 for number in there if number not in before), None)
    remedy = f"; begin with step {least}" if least is not None and least in branch.steps else ""
    msg = (
        f"run {folder.run_id!r} has no checkpoint from before step {first}; kept are those "
        f"{has}{bad}{remedy}"
    )
    raise Refused(msg)


def _weights_of(folder: RunFolder, version: int, digest: str) -> dict[str, RawTensor] | None:
    """What was announced, from the weights folder or the version's checkpoint; None when gone."""
    for tensors in _candidates(folder, version):
        if weights_digest(tensors) == digest:
            return tensors
    return None


def _candidates(folder: RunFolder, version: int) -> Iterable[dict[str, RawTensor]]:
    for path in sorted((folder.directory / "weights").glob(f"v{version:08d}-*.safetensors")):
        yield from_safetensors(path.read_bytes())
    kept = checkpoints.kept(folder.directory / "checkpoints")
    if version in kept:
        yield dict(checkpoints.load(kept[version]).state.weights)


def _difference(ours: dict[str, RawTensor], theirs: dict[str, RawTensor]) -> float:
    """The largest absolute difference of a parameter; both are float32."""
    return max(
        float(np.abs(_values(tensor) - _values(theirs[name])).max(initial=0.0))
        for name, tensor in ours.items()
    )


def _values(tensor: RawTensor) -> np.ndarray:
    return np.frombuffer(tensor.data, dtype="<f4").astype(np.float64)


def retrain(
    log: Log,
    codec: Codec,
    topics: Topics,
    folder: RunFolder,
    steps: tuple[int, int],
    *,
    version: int | None,
    threads: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Plan, train, tell; return the report."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(threads)
    planned = plan(log, codec, topics, folder, *steps, version)
    for text in lines(planned, threads):
        tell(text)
    done = []
    for again in train(planned, codec):
        tell(line(again))
        done.append(again)
    return report(planned, threads, done)
