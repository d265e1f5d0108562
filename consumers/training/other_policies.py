"""The other policies of a run, as seen by the trainer that admits: their steps and versions.

Its only source is `policy.versions`: trainers do not call each other, and any may be down.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.bounds import VERSIONS_END
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import PolicyVersion, RolloutRequest
from rollcall.schemas.topics import Topics

STARVED_S = 20.0
"""The longest time with a closed barrier and nothing in flight, before a batch is let through."""

log = structlog.get_logger()


@dataclass(eq=False)
class OtherPolicies:
    """The step of each policy; with a barrier, decides whether new rollouts may begin."""

    log: Log
    codec: Codec
    topics: Topics
    run: TrainingRun
    clock: Callable[[], float]
    steps: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    _closed_since: float | None = None
    _apart: dict[str, int] = field(default_factory=dict)
    """Steps that each was behind us when a batch was last let through a closed barrier."""
    _apart_at: int = 0
    """Our own step at that time."""

    def __post_init__(self) -> None:
        self.reader = self.log.reader([self.topics.versions]) if self.run.others else None

    def follow(self) -> None:
        """Read new announcements. Raises Unavailable."""
        while self.reader is not None and (records := self.reader.poll(0.0)):
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        policy_id = (record.key or b"").decode(errors="replace")
        if policy_id not in self.run.others or record.value is None:
            return
        announced = decoded(self.codec, record, PolicyVersion)
        if announced and announced.run_id == self.run.run_id and announced.version < VERSIONS_END:
            self.steps[policy_id] = announced.step
            self.versions[policy_id] = announced.version

    def all_there(self) -> bool:
        """Return True if each of them has weights that can be served."""
        return self.versions.keys() >= self.run.others.keys()

    def granted(self, groups: int, batch: int, step: int, running: int) -> int:
        """Return how many of the granted `groups` may begin while our own policy is at `step`.

        `running` are in flight, `batch` groups make a step. A policy whose batch cannot be filled
        by those in flight would wait for ever, so after `STARVED_S` with none in flight one more
        batch begins. A policy that is as far behind afterwards has lost a batch for good: that gap
        counts as level from then on.
        """
        if not self.run.barrier or self._level(step):
            self._closed_since = None
            return groups
        now = self.clock()
        if running or self._closed_since is None:
            self._closed_since = now
        if now - self._closed_since < STARVED_S:
            return 0
        self._closed_since = None
        self._apart = {policy_id: step - at for policy_id, at in self._unfinished().items()}
        self._apart_at = step
        log.warning("barrier_opened_for_batch", step=step, others=dict(self.steps))
        return batch

    def _level(self, step: int) -> bool:
        """Return True if all are at our step, except for lost batches, or have taken their last."""
        known = self._apart if step > self._apart_at else {}
        gaps = {policy_id: step - at for policy_id, at in self._unfinished().items()}
        return all(
            min(known.get(policy_id, 0), 0) <= gap <= max(known.get(policy_id, 0), 0)
            for policy_id, gap in gaps.items()
        )

    def _unfinished(self) -> dict[str, int]:
        """Return the steps of the policies that have not taken their last one."""
        stands = {policy_id: self.steps.get(policy_id, 0) for policy_id in self.run.others}
        return {
            policy_id: stands[policy_id]
            for policy_id, last in self.run.others.items()
            if not 0 < last <= stands[policy_id]
        }

    def pinned(self, request: RolloutRequest) -> RolloutRequest:
        """Return the request with the current version of each of them."""
        return replace(request, policy_versions=dict(self.versions)) if self.versions else request
