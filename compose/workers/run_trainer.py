"""The assembly of a run's trainer, and the lock that admits one process at a time."""

import fcntl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import structlog

from rollcall.compose.workers.rank_processes import begins, sharded
from rollcall.compose.workers.readiness import patiently
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.history.rollouts.continuations import Continuations
from rollcall.consumers.history.versions.versions_in_use import VersionsInUse
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import PolicyVersion, RolloutRequest, TrainStep

if TYPE_CHECKING:
    from rollcall.compose.runs.run_folder import RunFolder
    from rollcall.consumers.training.rollout_continuation import Continue
    from rollcall.consumers.training.trainer import Trainer
    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.learner.ranks import ProcessRanks
    from rollcall.trainer.learner.step import Learner

STAND_BY_S = 0.5

log = structlog.get_logger()


def run_trainer(
    factory: WorkerFactory,
    name: str,
    folder: "RunFolder",
    learner: "Learner | None" = None,
    *,
    accept: bool = False,
) -> "Trainer":
    """Make a run's trainer from its newest checkpoint, by default with a new learner.

    Raises Refused if the run's recipe needs several processes.
    """
    from rollcall.consumers.training.trainer_setup import TrainerSetup
    from rollcall.trainer.curation.reading import reading_of

    factory.codec.prepare(factory.topics.versions, PolicyVersion)
    factory.codec.prepare(factory.topics.train_steps, TrainStep)
    factory.codec.prepare(factory.topics.requests, RolloutRequest)
    config, learner = folder.learner(), learner or _learner(factory, folder)
    return TrainerSetup(
        name,
        factory.log,
        factory.codec,
        factory.topics,
        factory.log.publisher(),
        learner,
        config,
        folder.run(),
        folder.draws(),
        None if folder.part else HeldOut(folder.heldout()),
        () if folder.part else folder.curators(),
        in_use=VersionsInUse(factory, folder.policy_id),
        continue_=continuations(factory, config),
        reencode=folder.trained().reencoder(),
        reading=reading_of(folder.policy, learner.model.config),
        accept_truncation=accept,
        # Inline if all workers share this process, so that the order of events is deterministic.
        executor=ThreadPoolExecutor(1, "saver") if factory.watched else InlineExecutor(),
    ).open()


def _learner(factory: WorkerFactory, folder: "RunFolder") -> "Learner":
    from rollcall.trainer.learner.step import Learner
    from rollcall.trainer.weights.weights_files import of_version

    config = folder.learner()
    if config.computation.ranks > 1:
        msg = (
            f"ranks of [learner] is {config.computation.ranks}, but this trainer is one process; "
            "run it on Kafka, where each trainer has processes of its own, or take ranks out"
        )
        raise Refused(msg)
    return Learner(
        str(folder.policy),
        config,
        device=factory.settings.training.device,
        past=partial(of_version, folder.run().weights),
    )


def continuations(factory: WorkerFactory, config: "LearnerConfig") -> "Continue | None":
    """Return how cancelled rollouts of a run are continued; None if they are not."""
    if not config.cuts_off:
        return None
    guard = factory.guard("the program", factory.settings.agents.program_timeout_s)
    return Continuations(
        factory, FoldContext(program_of, Random, guard), config.groups.mask_continued
    ).requests


def train(
    factory: WorkerFactory,
    name: str,
    folder: "RunFolder",
    stopping: Callable[[], bool],
    ranks: "ProcessRanks | None" = None,
    *,
    accept: bool = False,
) -> None:
    """Train a run, with other ranks if there are any; while another process trains it, stand by.

    The others are released at the end, but not by an error: they then end with this process.
    """
    import torch

    torch.set_num_threads(factory.settings.training.threads)
    with sole_trainer(folder.directory, stopping) as ours:
        begun = begins(ranks, ours) if ranks else ours
        learner = sharded(folder, factory.settings.training, ranks) if ranks and begun else None
        if begun:
            begin = partial(run_trainer, factory, name, folder, learner, accept=accept)
            patiently(begin).go_on(stopping)
        if learner is not None:
            learner.end()
        if ranks is not None:
            ranks.leave()


@contextmanager
def sole_trainer(directory: Path, stopping: Callable[[], bool]) -> Iterator[bool]:
    """Hold a run's lock, waiting for it; False when told to stop first. Dies with its process."""
    with (directory / "trainer.lock").open("w") as lock:
        announced = False
        while not stopping():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not announced:
                    announced = True
                    log.info("trainer_on_standby", run=directory.name)
                time.sleep(STAND_BY_S)
            else:
                yield True
                return
        yield False
