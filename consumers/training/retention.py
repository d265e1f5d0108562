"""Retention of a run's weights and checkpoints, applied after each version.

The rule is `rollcall.trainer.weights.weights_needs`; the journal is read only if a file could be
deleted but for it, and at most once a minute. If the run has a bound, older checkpoints are deleted
too, the oldest first, until the rest fits. The newest one is kept, and all that is needed.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from rollcall.consumers.training.disk_room import sizes_of
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.store_urls import local_path
from rollcall.schemas.weights_store import remove
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.resume_points import ResumePoint, resume_points
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.publication import check_bound
from rollcall.trainer.weights.weights_needs import KeptFile, WeightsNeeds, may_go

if TYPE_CHECKING:
    from rollcall.consumers.history.versions.version_use import VersionUse

LOOK_EVERY_S = 60.0

log = structlog.get_logger()


class VersionsInUseReader(Protocol):
    """`rollcall.consumers.history.versions.versions_in_use.VersionsInUse`."""

    def announced(self) -> "VersionUse": ...

    def add_rollouts(
        self, use: "VersionUse", run: TrainingRun, points: Sequence[ResumePoint]
    ) -> None: ...


@dataclass(eq=False)
class Retention:
    """Deletes what is not needed any more."""

    run: TrainingRun
    config: LearnerConfig
    in_use: VersionsInUseReader
    clock: Callable[[], float] = time.monotonic
    kept_bytes: int = 0
    """The size of weights and checkpoints at the last look."""
    _due: float = -inf
    _said: bool = False
    """True once it was logged that the bound cannot be kept."""

    def require_bound(self, state: LearnerState) -> None:
        """Raise Refused if one full version and one checkpoint do not fit into the bound."""
        weights, optimiser, rng = sizes_of(state)
        published = weights // 2 if self.run.publishing.rounds else weights
        moments = optimiser if self.config.lora else max(optimiser, 2 * weights)
        check_bound(self.run.publishing.keep_bytes, published, weights + moments + rng)

    def collect(self, awaited: Collection[int]) -> None:
        """Delete what may go; if log or store is unreachable, try again after the next version.

        `awaited` are versions under evaluation, or whose weights may have to score tokens.
        """
        every = self.config.saving.keep_every
        checkpoints.prune(self.run.checkpoints, checkpoints.NEWEST, every)
        try:
            self._collect(awaited)
        except Unavailable as error:
            log.warning("weights_not_cleared", policy_id=self.run.policy_id, error=str(error))

    def _collect(self, awaited: Collection[int]) -> None:
        self._measure()
        bound = self.run.publishing.keep_bytes
        over = 0 < bound < self.kept_bytes
        if not over and self.clock() < self._due:
            return
        self._due = self.clock() + LOOK_EVERY_S
        use = self.in_use.announced()
        if not may_go(self._files(), self._needs(use, awaited)) and not over:
            return
        points = resume_points(self.run.checkpoints)
        self.in_use.add_rollouts(use, self.run, points)
        self._clear(use, awaited)
        if over:
            self._keep_to(bound, use, awaited)

    def _clear(self, use: "VersionUse", awaited: Collection[int]) -> None:
        gone = may_go(self._files(), self._needs(use, awaited))
        for file in gone:
            remove(self.run.weights, file.name)
        if gone:
            log.info("weights_cleared", policy_id=self.run.policy_id, files=len(gone))
        self._measure()

    def _keep_to(self, bound: int, use: "VersionUse", awaited: Collection[int]) -> None:
        for older in list(checkpoints.kept(self.run.checkpoints).values())[:-1]:
            if self.kept_bytes <= bound:
                break
            checkpoints.remove(older)
            self._clear(use, awaited)
        over = self.kept_bytes > bound
        if over and not self._said:
            log.warning(
                "keep_bytes_exceeded",
                policy_id=self.run.policy_id,
                keep_bytes=bound,
                kept_bytes=self.kept_bytes,
                remedy="all of it is needed: `rollcall weights RUN` says by whom; raise keep_bytes",
            )
        self._said = over

    def _needs(self, use: "VersionUse", awaited: Collection[int]) -> WeightsNeeds:
        needed = checkpoints.needed_by_newest(self.run.checkpoints, self.config.scoring_versions)
        return use.needs(checkpoints=needed, awaited=awaited)

    def _files(self) -> list[KeptFile]:
        return weights_files.files_in(self.run.weights)

    def _measure(self) -> None:
        self.kept_bytes = taken_bytes(self.run.weights, self.run.checkpoints)


def taken_bytes(weights: str, root: Path) -> int:
    """Return the bytes of weights and checkpoints; hard links count once. Raises Unavailable."""
    here = local_path(weights)
    elsewhere = 0 if here else sum(file.size_bytes for file in weights_files.files_in(weights))
    files = (path for folder in (here, root) if folder for path in folder.rglob("*"))
    stats = (path.lstat() for path in files if path.is_file())
    return elsewhere + sum({stat.st_ino: stat.st_size for stat in stats}.values())
