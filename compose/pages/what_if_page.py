"""Retraining of a run's steps under another rule, with progress output."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from rollcall.compose.runs.held_out_trial import HeldOutSuccess
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.retraining import plan
from rollcall.consumers.history.runs.training_record import TrainedRun
from rollcall.consumers.history.runs.what_if import OtherwiseStep, WhatIf, require_trainable
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig

SHOWN = ("loss", "grad_norm", "clip_fraction", "entropy", "approx_kl", "advantage_std")
EXACT = (
    "exact: the checkpoint with its optimiser, the recorded batches and their order; not exact: "
    "the data are of the policy of then, so later steps say ever less about a run by itself"
)


def train_otherwise(
    history: History,
    run: TrainedRun,
    steps: tuple[int, int],
    config: LearnerConfig,
    *,
    version: int | None,
    without_task: str,
    threads: int,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], tuple[LearnerState, LearnerState]]:
    """Plan, train both, report in lines; return report and both results. Raises Refused."""
    require_trainable(run.config, config)
    disable_progress_bar()
    torch.set_num_threads(threads)
    ahead = plan(history, run, *steps, version)
    what_if = WhatIf(ahead, config, history.codec, without_task)
    tell(f"run {run.run_id}, from checkpoint {ahead.path.name} (step {ahead.start.state.step})")
    tell(EXACT)
    if ahead.ranks > 1:
        tell(f"{ahead.ranks} ranks trained these steps, here it is one: so none has its bits")
    told = []
    for step in what_if.train():
        for line in step_lines(step):
            tell(line)
        told.append(asdict(step))
    report = {
        "run_id": run.run_id, "checkpoint": ahead.path.name, "without_task": without_task,
        "weights_digest_then": ahead.announced[ahead.branch.steps[ahead.last].version],
        "steps": told,
    }  # fmt: skip
    return report, what_if.states()


def success_lines(then: HeldOutSuccess, now: HeldOutSuccess) -> Iterator[str]:
    """Yield the results of both on the same held-out seeds, and their differences."""
    worse, better = len(then.succeeded - now.succeeded), len(now.succeeded - then.succeeded)
    yield (
        f"held-out success, {then.rollouts} seeds, greedy: {then.share:.3f} as it was -> "
        f"{now.share:.3f} otherwise ({better} won, {worse} lost)"
    )


def step_lines(step: OtherwiseStep) -> Iterator[str]:
    """Yield a step's data and the distance of the weights, then each metric in both versions."""
    left_out = f", {step.left_out} left out" if step.left_out else ""
    bits = {True: "as it was to the bit", False: "not the bits of then", None: "digest is gone"}
    yield (
        f"step {step.step:>4}  {step.trajectories} trajectories{left_out}  weights "
        f"{step.distance:.4g} apart; since the checkpoint they moved {step.moved:.4g} "
        f"({bits[step.exact]})"
    )
    for name in SHOWN:
        if name in step.then and name in step.now:
            yield f"    {name:<14} {step.then[name]:>12.6g} -> {step.now[name]:>12.6g}"
