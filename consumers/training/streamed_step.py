"""The step in progress when gradients are added as groups complete.

An added group stays in the buffer until its batch is whole, so it is counted like every other
group, and a restarted trainer adds it again. If the final batch differs from the added groups, the
step is computed anew from the batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from rollcall.schemas.errors import BatchFailed, Unavailable
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.learner.streaming import Streaming
from rollcall.trainer.rules.samples import Sample

log = structlog.get_logger()


@dataclass(eq=False)
class StreamedStep:
    """Adds gradients of complete groups, and takes the step."""

    learner: Learner
    buffer: Buffer
    clock: Callable[[], float] = time.monotonic
    added_s: float = 0.0
    """Seconds spent adding gradients of the step in progress, before its batch was whole."""
    _streaming: Streaming | None = None
    _added: set[str] = field(default_factory=set)
    _broken: bool = False
    """True if a group could not be added; the step of its batch will raise the error."""

    def add_complete(self) -> int:
        """Add the gradients of newly completed groups; return their number.

        Raises Unavailable if all of them have to be added again.
        """
        new = [each for each in self.buffer.complete() if each[0] not in self._added]
        began = self.clock()
        for key, samples in () if self._broken else new:
            self._streaming = self._streaming or self.learner.streaming()
            try:
                self.learner.stream(self._streaming, samples)
            except BatchFailed as error:
                log.warning("group_not_streamed", group=key, error=str(error))
                self._broken = True
                break
            except Unavailable:
                self._streaming = None  # the groups that were added before are lost too
                self._added.clear()
                raise
            self._added.add(key)
        self.added_s += self.clock() - began if new else 0.0
        return len(new)

    def take(
        self, samples: tuple[Sample, ...], version: int
    ) -> tuple[dict[str, float], tuple[Sample, ...]]:
        """Take the step of a whole batch; return metrics, and samples in the order of summation.

        Raises the errors of `Learner.step`.
        """
        streaming, self._streaming = self._streaming, None
        whole = streaming is not None and not self._broken
        added_s, self.added_s, self._broken = self.added_s, 0.0, False
        self._added.clear()
        if streaming is None or not whole or _places(streaming.samples) != _places(samples):
            return self.learner.step(samples, version=version), samples
        metrics = self.learner.finish(streaming, version=version)
        return metrics | {"streamed_seconds": added_s}, tuple(streaming.samples)


def _places(samples: "list[Sample] | tuple[Sample, ...]") -> list[tuple[int, int]]:
    return sorted((sample.partition, sample.offset) for sample in samples)
