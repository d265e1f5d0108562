"""Training on whole batches: take a step and its metrics, or drop the batch and count it.

If a batch ends the process, the error names its offsets, since no step record will have them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from rollcall.consumers.training.intake import Intake
from rollcall.consumers.training.step_balance import StepBalance
from rollcall.consumers.training.step_saver import StepSaver
from rollcall.consumers.training.streamed_step import StreamedStep
from rollcall.schemas.errors import BatchFailed, Unfit
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.reading import Reading
from rollcall.trainer.rules.samples import RECORDED, SHARED, Sample

MOST_STRETCHES = 32
"""The most ranges of offsets that are named of one batch."""

log = structlog.get_logger()


@dataclass(eq=False)
class BatchTraining:
    """Takes the steps of one run, one after another."""

    config: LearnerConfig
    intake: Intake
    saver: StepSaver
    balance: StepBalance
    streamed: StreamedStep
    clock: Callable[[], float]
    reading: Reading
    """The limits of what the policy can read: its vocabulary and its context."""
    batch: tuple[Sample, ...] = field(default=(), init=False)
    """The samples that were taken from the buffer, until the batch is trained on or dropped."""
    _failed_in_a_row: int = field(default=0, init=False)

    def train(self) -> None:
        """Train on the batch and have the step saved; drop a batch that cannot be trained on.

        Raises Unavailable if a store is unreachable; the batch, or the unsaved step, is kept for a
        retry. Raises DiskFull if the step cannot be saved, and Unfit after `max_skipped` batches
        in a row that were dropped or had gradients that are not finite.
        """
        began, samples, parent = self.clock(), self.batch, self.intake.learner.version
        try:
            metrics, samples = self._learn(samples)
        except BatchFailed as error:
            self.batch = ()
            self._drop(samples, error)
            return
        except Unfit as error:
            msg = f"{error}; the last batch was {self._place(samples)}"
            raise Unfit(msg) from error
        self.batch, self._failed_in_a_row = (), 0
        try:
            self._record(samples, metrics, parent, began)
        # Only the learner has the step now, and it must not continue from a step that is not saved.
        except Exception as error:
            msg = (
                f"step {self.intake.learner.steps_done} was taken and could not be recorded: "
                f"{type(error).__name__}: {error}; nothing of it was saved or announced, and the "
                "next process takes it again from the checkpoint; its batch was "
                f"{self._place(samples)}"
            )
            raise Unfit(msg) from error
        self.saver.save_trained()
        self.balance.waits()

    def _record(
        self, samples: tuple[Sample, ...], metrics: dict[str, float], parent: int, began: float
    ) -> None:
        """Pass the step and all metrics of its record to the saver."""
        intake = self.intake
        metrics["step_seconds"] = self.clock() - began
        metrics["held"] = float(intake.buffer.held())
        metrics["running"] = float(intake.ledger.running())
        fresh = [sample for sample in samples if sample.fresh]
        metrics["save_stall_s"], self.saver.stalled_s = self.saver.stalled_s, 0.0
        metrics["kept_bytes"] = float(self.saver.retention.kept_bytes)
        metrics |= self.balance.step(began, fresh, intake.buffer.drops(), intake.buffer.held())
        metrics |= _borrowed(samples) | self.reading.metrics(fresh)
        for sample in fresh:
            intake.consumption.consumed(sample.partition, sample.offset)
        self.saver.trained(samples, metrics, parent)

    def _learn(self, samples: tuple[Sample, ...]) -> tuple[dict[str, float], tuple[Sample, ...]]:
        """Take a step; return its metrics, and its samples in the order of summation."""
        version, learner = self.saver.next_version(), self.intake.learner
        if self.config.interrupts:
            learner.cache_logprobs([*self.intake.buffer.cacheable(), *samples])
        if self.config.stream:
            return self.streamed.take(samples, version)
        return learner.step(samples, version=version), samples

    def _drop(self, samples: tuple[Sample, ...], error: BatchFailed) -> None:
        """Count a batch that cannot be trained on as dropped, so that the next one is tried.

        Raises Unfit after `max_skipped` in a row: then the fault is not in the batch. The
        checkpoint is saved first, so that a restart does not meet these batches again.
        """
        self.intake.buffer.spoil(samples, "step_failed")
        self.intake.note_dropped()
        step, batch = self.intake.learner.steps_done + 1, self._place(samples)
        log.error("batch_dropped", step=step, batch=batch, error=str(error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.config.optimiser.max_skipped:
            self.saver.save_again()
            msg = (
                f"{self._failed_in_a_row} batches in a row were dropped, the last, {batch}, since "
                f"{error}"
            )
            raise Unfit(msg) from error

    def _place(self, samples: Sequence[Sample]) -> str:
        """Return the offsets of a batch: `rl.trajectories.scored 0@17-20, 1@3`."""
        found = list(stretches((sample.partition, sample.offset) for sample in samples))
        ranges = [f"{at}@{first}" + f"-{last}" * (last > first) for at, first, last in found]
        more = f" and {len(ranges) - MOST_STRETCHES} more" if len(ranges) > MOST_STRETCHES else ""
        return f"{self.intake.topics.scored} {', '.join(ranges[:MOST_STRETCHES])}{more}"


def stretches(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Merge places into ranges: yield partition, first and last offset, in order."""
    stretch: tuple[int, int, int] | None = None
    for partition, offset in sorted(set(places)):
        if stretch and stretch[0] == partition and offset == stretch[2] + 1:
            stretch = partition, stretch[1], offset
            continue
        if stretch:
            yield stretch
        stretch = partition, offset, offset
    if stretch:
        yield stretch


def _borrowed(samples: Sequence[Sample]) -> dict[str, float]:
    """Count the samples that were used before, recorded by another run, or shared; omit zeros."""
    counts = {
        "replayed": sum(sample.uses > 0 for sample in samples),
        RECORDED: sum(sample.borrowed == RECORDED for sample in samples),
        SHARED: sum(sample.borrowed == SHARED for sample in samples),
    }
    return {name: float(count) for name, count in counts.items() if count}
