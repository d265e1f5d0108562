"""What is done with a whole batch: a step and its metrics; or it is dropped, and counted.

Whichever batch ends the process is named by its places in the log: no step's record will tell.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from consumers.training.intake import Intake
from consumers.training.step_balance import StepBalance
from consumers.training.step_saver import StepSaver
from consumers.training.streamed_step import StreamedStep
from schemas.errors import BatchFailed, Unfit
from trainer.config import LearnerConfig
from trainer.foreign import RECORDED, SHARED
from trainer.reading import Reading
from trainer.samples import Sample

MOST_STRETCHES = 32
"""Of a batch, told."""

log = structlog.get_logger()


@dataclass(eq=False)
class BatchTraining:
    """Takes the steps of one run, one after the other."""

    config: LearnerConfig
    intake: Intake
    saver: StepSaver
    balance: StepBalance
    streamed: StreamedStep
    clock: Callable[[], float]
    reading: Reading
    """How far the policy reads what it is trained on."""
    batch: tuple[Sample, ...] = field(default=(), init=False)
    """What was taken from the buffer, until it is trained on or dropped."""
    _failed_in_a_row: int = field(default=0, init=False)

    def train(self) -> None:
        """Train on the batch and have it saved; a batch that cannot be trained on is dropped.

        Raises Unavailable where a store is away: the batch is still there, or a step that has to be
        saved. Raises DiskFull where it cannot be saved, Unfit after `max_skipped` batches in a row
        that were dropped, or whose gradients were not finite.
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
            self._tell(samples, metrics, parent, began)
        # Whatever it is, the learner alone knows of the step, and must not go on from there.
        except Exception as error:
            msg = (
                f"step {self.intake.learner.steps_done} was taken and could not be told of: "
                f"{type(error).__name__}: {error}; nothing of it was saved or announced, and the "
                "next process takes it again from the checkpoint; its batch was "
                f"{self._place(samples)}"
            )
            raise Unfit(msg) from error
        self.saver.save_trained()
        self.balance.waits()

    def _tell(
        self, samples: tuple[Sample, ...], metrics: dict[str, float], parent: int, began: float
    ) -> None:
        """Hand a step that was taken to what saves it, with all that its record tells."""
        intake = self.intake
        metrics["step_seconds"] = self.clock() - began
        metrics["held"] = float(intake.buffer.held())
        metrics["running"] = float(intake.accounts.running())
        fresh = [sample for sample in samples if sample.fresh]
        metrics["save_stall_s"], self.saver.stalled_s = self.saver.stalled_s, 0.0
        metrics["kept_bytes"] = float(self.saver.retention.kept_bytes)
        metrics |= self.balance.step(began, fresh, intake.buffer.drops(), intake.buffer.held())
        metrics |= _lent(samples) | self.reading.told(fresh)
        for sample in fresh:
            intake.consumption.consumed(sample.partition, sample.offset)
        self.saver.trained(samples, metrics, parent)

    def _learn(self, samples: tuple[Sample, ...]) -> tuple[dict[str, float], tuple[Sample, ...]]:
        """The metrics of a step, and its samples in the order in which they were added."""
        version, learner = self.saver.next_version(), self.intake.learner
        if self.config.interrupts:
            learner.note([*self.intake.buffer.noteworthy(), *samples])
        if self.config.stream:
            return self.streamed.take(samples, version)
        return learner.step(samples, version=version), samples

    def _drop(self, samples: tuple[Sample, ...], error: BatchFailed) -> None:
        """Count a batch that cannot be trained on as dropped, so that the next one is tried.

        Raises Unfit after `max_skipped` in a row, with all of them in the checkpoint: then it is
        not the batch, and whoever begins again does not meet these again.
        """
        self.intake.buffer.spoil(samples, "step_failed")
        self.intake.note_dropped()
        step, batch = self.intake.learner.steps_done + 1, self._place(samples)
        log.error("batch_dropped", step=step, batch=batch, error=str(error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.config.max_skipped:
            self.saver.save_again()
            msg = (
                f"{self._failed_in_a_row} batches in a row were dropped, the last, {batch}, since "
                f"{error}"
            )
            raise Unfit(msg) from error

    def _place(self, samples: Sequence[Sample]) -> str:
        """Where a batch lies: `rl.trajectories.scored 0@17-20, 1@3`."""
        found = list(stretches((sample.partition, sample.offset) for sample in samples))
        told = [f"{at}@{first}" + f"-{last}" * (last > first) for at, first, last in found]
        more = f" and {len(told) - MOST_STRETCHES} more" if len(told) > MOST_STRETCHES else ""
        return f"{self.intake.words.topics.scored} {', '.join(told[:MOST_STRETCHES])}{more}"


def stretches(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Partition, first and last offset of what lies side by side, in order."""
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


def _lent(samples: Sequence[Sample]) -> dict[str, float]:
    """How many of a batch were used before, recorded by another run, shared by one; if any were."""
    counts = {
        "replayed": sum(sample.uses > 0 for sample in samples),
        RECORDED: sum(sample.lent == RECORDED for sample in samples),
        SHARED: sum(sample.lent == SHARED for sample in samples),
    }
    return {name: float(count) for name, count in counts.items() if count}
