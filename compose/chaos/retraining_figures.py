"""A check of a run whose trainer was killed: its steps are retrained, bit for bit."""

import torch
from transformers.utils.logging import disable_progress_bar

from rollcall.compose.chaos.training_figures import TrainingFigures
from rollcall.compose.workers.retraining_ranks import learner_of
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.retraining import plan, train
from rollcall.consumers.history.runs.training_record import TrainedRun, digests_of, steps_of
from rollcall.schemas.errors import RollcallError
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.weights.branches import branch_of


def figures_of_run(history: History, run: TrainedRun, threads: int) -> TrainingFigures:
    """Load every checkpoint, then repeat all steps from the first, with `threads` threads.

    Raises Refused if the record or the first checkpoint is gone.
    """
    steps = list(steps_of(history, run))
    if not steps:
        return TrainingFigures()
    branch = branch_of(steps)
    found, damaged, wrong = _checkpoints(history, run)
    disable_progress_bar()
    torch.set_num_threads(threads)
    ahead = plan(history, run, min(branch.steps), max(branch.steps), branch.version)
    with learner_of(ahead, threads) as learner:
        again = [step.identical for step in train(ahead, history.codec, learner)]
    return TrainingFigures(
        steps=len(branch.steps),
        abandoned=sum(map(len, branch.abandoned.values())),
        checkpoints=found,
        damaged=damaged,
        wrong_digest=wrong,
        trained_again=len(again),
        differing=sum(same is not True for same in again),
    )


def _checkpoints(history: History, run: TrainedRun) -> tuple[int, int, int]:
    """Count all checkpoints, those that cannot be loaded, and those with other weights."""
    kept = checkpoints.kept(run.directory / "checkpoints")
    announced = dict(digests_of(history, run, set(kept)))
    damaged = wrong = 0
    for version, path in kept.items():
        try:
            weights = checkpoints.load(path).state.weights
        except (RollcallError, OSError, ValueError, KeyError, TypeError):
            damaged += 1
            continue
        like = announced.get(version)
        wrong += like is not None and run.publishing.digest(weights, like) != like
    return len(kept), damaged, wrong
