"""A process that trains, saves and publishes like a run, and reports the time of each part.

`python -m rollcall.compose.benchmarks.one_saver DIRECTORY SCRATCH STEPS GROUPS ANSWERS PROMPT
ANSWER`: the real trainer on the in-memory log, with `publish = "bfloat16"`, `weights = "delta"`,
`save = "async"` and `announce = "early"`; only the rollouts are fakes. Every second step begins
after the version before it is saved, so steps with and without saving are measured in the same run.
The one line of standard output is a `Saved`, as JSON.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rollcall.compose.benchmarks.one_trainer import LR, Shape, rows, samples_of, scored_row
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.training.trainer_setup import TrainerSetup
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import PolicyVersion, RolloutRequest, Task, TrainStep
from rollcall.schemas.published_weights import Published
from rollcall.schemas.topics import Topics, wanted
from rollcall.schemas.weights import sha256s_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import BFLOAT16
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.publication import DELTA, Publishing, rounded

POLICY, SCORING = "bench", "scoring"
STALENESS = 2
MICRO_BATCH_TOKENS = 512
"""The size of micro batches, as in a recipe for a machine with little memory."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The measurements of a run."""

    plain_s: tuple[float, ...]
    """The times of steps without a save beside them."""
    period_s: tuple[float, ...]
    """The times from the end of such a step to that of the next, while the first was saved."""
    version_s: tuple[float, ...]
    """The times from the end of a step to its delta's announcement, while the next was trained."""
    delta_bytes: tuple[int, ...]
    stall_s: tuple[float, ...]
    """The times that training waited for saving, by each step's metrics."""
    peak_bytes: int
    """The peak memory of the process."""
    started_bytes: int
    """The memory before the model was loaded."""
    weights_bytes: int
    """The size of the model in float32."""
    copy_s: float
    """The time of a copy of weights and moments."""
    digest_s: float
    """The time of one sha256 of the published weights, on all cores."""


@dataclass(eq=False)
class TimedLearner:
    """A learner wrapped to record the beginning and end of each step."""

    learner: Learner
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    """The spans of steps by version, in seconds."""

    def step(self, samples: Sequence[Sample], *, version: int) -> dict[str, float]:
        began = time.time()
        metrics = self.learner.step(samples, version=version)
        self.spans[version] = began, time.time()
        return metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("learner", "spans"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.learner, name, value)


@dataclass(eq=False)
class SavedRun:
    """A run whose rollouts end as soon as they are requested."""

    directory: Path
    learner: Any
    config: LearnerConfig
    shape: Shape
    seen: int = 0

    def __post_init__(self) -> None:
        self.topics = Topics("bench.")
        self.log = MemoryLog(wanted("bench.", [POLICY], partitions=1))
        self.codec = Codec(LocalRegistry())
        self.batch = list(rows(self.shape, self.learner.vocabulary))
        size = self.shape.groups * self.shape.answers
        run = TrainingRun(
            "bench",
            POLICY,
            self.directory,
            {},
            SCORING,
            AdmissionRule(STALENESS, size, 4 * size, self.shape.answers),
            self.config.steps,
            publishing=Publishing(BFLOAT16, DELTA, full_every=1_000),
        )
        template = RolloutRequest("", Task(), policy_id=POLICY, run_id="bench", purpose="train")
        self.trainer = TrainerSetup(
            "training",
            self.log,
            self.codec,
            self.topics,
            self.log.publisher(),
            self.learner,
            self.config,
            run,
            Draws(template, 0, self.shape.answers, (0, 1_000)),
            in_use=VersionsInUse(self, POLICY),
            executor=ThreadPoolExecutor(1, "saver"),
        ).open()

    def train(self) -> None:
        """Train to the end and announce all; before every second step, wait until all is saved."""
        saver = self.trainer.saver
        while not self.trainer.done():
            self._end_what_was_asked()
            self.trainer.turn(0.0)
            if self.learner.steps_done % 2 == 0 and not saver.all_saved():
                saver.save_trained(wait=True)
                saver.stalled_s = 0.0  # no step waited for it

    def versions(self) -> dict[int, tuple[float, PolicyVersion]]:
        """Return each version with the time of its announcement, in seconds."""
        found = {}
        for record in self.log.all(self.topics.versions):
            version = self.codec.decode(record.value, PolicyVersion)
            found[version.version] = record.timestamp_ms / 1000, version
        return found

    def stalls(self) -> list[float]:
        """Return the time that each step waited for the save of the one before."""
        records = self.log.all(self.topics.train_steps)
        steps = (self.codec.decode(record.value, TrainStep) for record in records)
        return [step.metrics["save_stall_s"] for step in steps]

    def _end_what_was_asked(self) -> None:
        asked = self.log.all(self.topics.requests)
        for record in asked[self.seen :]:
            request = self.codec.decode(record.value, RolloutRequest)
            row = self.batch[self.seen % len(self.batch)]
            self.seen += 1
            scored = scored_row(request, POLICY, *row, version=self.learner.version)
            value = self.codec.encode(self.topics.scored, scored)
            self.log.append(self.topics.scored, request.group_id.encode(), value)


def config_of(shape: Shape, steps: int) -> LearnerConfig:
    return LearnerConfig(
        lr=LR,
        entropy=0.0,
        advantage="grpo",
        packing="shared",
        steps=steps,
        groups_per_step=shape.groups,
        group_size=shape.answers,
        max_staleness=STALENESS,
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        save="async",
        announce="early",
    )


def saved(directory: str, scratch: Path, steps: int, shape: Shape) -> Saved:
    """Measure `steps` steps without saving, and after each of them one with it."""
    started_bytes = _held_bytes()
    config = config_of(shape, 2 * steps)
    learner = Learner(directory, config)
    learner.step(samples_of(shape, learner.vocabulary))  # creates the optimiser state
    learner.steps_done = 0
    timed = TimedLearner(learner)
    run = SavedRun(scratch, timed, config, shape)
    run.train()
    spans, announced = list(timed.spans.items()), run.versions()
    plain, beside = spans[::2], spans[1::2]
    seen = [(ended, *announced[number]) for number, (_, ended) in plain]
    of_deltas = [(said - ended, version) for ended, said, version in seen if version.deltas]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Saved(
        tuple(ended - began for _, (began, ended) in plain),
        tuple(
            then - before for (_, (_, before)), (_, (_, then)) in zip(plain, beside, strict=True)
        ),
        tuple(taken for taken, _ in of_deltas),
        tuple(Published(v.full, v.deltas).newest.size_bytes for _, v in of_deltas),
        tuple(run.stalls()),
        peak_bytes,
        started_bytes,
        *_ceilings(learner),
    )


def _ceilings(learner: Learner) -> tuple[int, float, float]:
    """Return bytes of the weights; seconds of a copy of weights and moments, and of a digest."""
    parameters = [parameter.detach() for parameter in learner.model.parameters()]
    began = time.perf_counter()
    for parameter in parameters:
        for _ in range(3):
            parameter.clone()
    copied = time.perf_counter()
    published = rounded(learner.tensors())
    hashing = time.perf_counter()
    sha256s_of(published)
    size_bytes = sum(each.numel() * each.element_size() for each in parameters)
    return size_bytes, copied - began, time.perf_counter() - hashing


def _held_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(directory: str, scratch: str, steps: str, *sizes: str) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to stderr, not among the results
    torch.manual_seed(7)
    found = saved(directory, Path(scratch), int(steps), Shape(*map(int, sizes)))
    out.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
