"""The records that announce a step: its version of the policy, and the samples of the step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import Consumed, PolicyVersion, TrainStep, WeightsFile
from rollcall.schemas.published_weights import Published
from rollcall.schemas.topics import Topics
from rollcall.schemas.trajectory_refs import fitted
from rollcall.trainer.curation.drops import Tally
from rollcall.trainer.curation.left_out import LeftOut, remedy_for
from rollcall.trainer.learner.machine import machine
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import Sample

NOT_OURS = frozenset({"other_run", "other_purpose", "other_policy", "duplicate"})
"""Drop reasons of records that are not rollouts of the run, or that were counted before."""

log = structlog.get_logger()

NOT_WRITTEN = WeightsFile("", "", 0, "", -1)


@dataclass(frozen=True, slots=True)
class StepRecords:
    """The records that announce a step, before the location of its weights is known."""

    version: PolicyVersion
    step: TrainStep | None
    """None for the weights that a run begins with."""

    def encoded(
        self,
        codec: Codec,
        topics: Topics,
        weights: Published,
        stamp: Callable[[TrainStep], TrainStep],
    ) -> dict[str, bytes]:
        """Encode the records, under the names that a checkpoint uses. Raises Unavailable.

        `stamp` sets the step's writer and its predecessor.
        """
        digest = weights.weights_digest
        version = replace(
            self.version, weights_digest=digest, full=weights.full, deltas=weights.deltas
        )
        records = {"version": codec.encode(topics.versions, version)}
        if self.step is not None:
            step = stamp(replace(self.step, weights_digest=digest))
            records["step"] = codec.encode(topics.train_steps, step)
        return records


@dataclass(eq=False)
class Announcements:
    """Makes the records of steps; each step counts what was dropped since the step before."""

    codec: Codec
    topics: Topics
    run: TrainingRun
    learner: Learner
    unreadable: int = 0
    """Records that could not be read since the last step."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """Counts since this process began."""
    _dropped_before: dict[str, int] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def begin(self, drops: Mapping[str, Tally]) -> None:
        """Count drops from here on; earlier ones have been announced."""
        self._dropped_before = _counts(drops)

    def records(
        self,
        parent: int,
        samples: Sequence[Sample],
        metrics: Mapping[str, float],
        drops: Mapping[str, Tally],
        consumed: tuple[Consumed, ...],
    ) -> StepRecords:
        """Return the records of the learner's step; `drops` are totals. Call once per step."""
        step = self._step(parent, samples, metrics, drops) if samples else None
        if step is not None:
            self._log_left_out(step)
        return StepRecords(self._version(parent, consumed), step)

    def _log_left_out(self, step: TrainStep) -> None:
        """Log each reason once, if more than a few rollouts are left out for it."""
        self.left_out.take(step)
        for reason, count in self.left_out.reported().items():
            if reason not in self._reported:
                self._reported.add(reason)
                log.warning(
                    "rollouts_left_out",
                    reason=reason,
                    rollouts=count,
                    of=self.left_out.rollouts,
                    step=step.step,
                    remedy=remedy_for(reason),
                )

    def _version(self, parent: int, consumed: tuple[Consumed, ...]) -> PolicyVersion:
        canary = self.learner.canary()
        return PolicyVersion(
            policy_id=self.run.policy_id,
            version=self.learner.version,
            parent=parent,
            run_id=self.run.run_id,
            step=self.learner.steps_done,
            weights_digest="",
            full=NOT_WRITTEN,
            canary_ids=canary.ids,
            canary_logprobs=canary.logprobs,
            precision=self.learner.published,
            consumed=consumed,
        )

    def _step(
        self,
        parent: int,
        samples: Sequence[Sample],
        metrics: Mapping[str, float],
        drops: Mapping[str, Tally],
    ) -> TrainStep:
        plain, packed = fitted([sample.ref(self.topics.scored) for sample in samples])
        return TrainStep(
            policy_id=self.run.policy_id,
            run_id=self.run.run_id,
            step=self.learner.steps_done,
            version=self.learner.version,
            parent=parent,
            trajectories=plain,
            metrics=dict(metrics),
            dropped=self._dropped_since(drops),
            checkpoint=f"v{self.learner.version:08d}",
            machine=machine(self.learner.device),
            packed=packed,
        )

    def _dropped_since(self, drops: Mapping[str, Tally]) -> dict[str, int]:
        now, before = _counts(drops), self._dropped_before
        since = {reason: count - before.get(reason, 0) for reason, count in now.items()}
        since["unreadable"], self.unreadable = self.unreadable, 0
        self._dropped_before = now
        return {reason: count for reason, count in since.items() if count}


def _counts(drops: Mapping[str, Tally]) -> dict[str, int]:
    return {reason: tally.count for reason, tally in drops.items() if reason not in NOT_OURS}
