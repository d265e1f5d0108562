"""Retraining of a run's steps with progress output."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from rollcall.compose.workers.retraining_ranks import learner_of
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.runs.retraining import (
    RetrainedStep,
    RetrainingPlan,
    environment_differences,
    plan,
    report,
    train,
)
from rollcall.consumers.history.runs.training_record import TrainedRun


def retrain_and_tell(
    history: History,
    run: TrainedRun,
    steps: tuple[int, int],
    *,
    version: int | None,
    threads: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Plan, train and report in lines; return the report. Raises Refused before any training."""
    disable_progress_bar()
    torch.set_num_threads(threads)
    ahead = plan(history, run, *steps, version)
    for line in _plan_lines(ahead, threads):
        tell(line)
    retrained = []
    with learner_of(ahead, threads) as learner:
        for step in train(ahead, history.codec, learner):
            tell(_step_line(step))
            retrained.append(step)
    return report(ahead, threads, retrained)


def _plan_lines(plan: RetrainingPlan, threads: int) -> Iterator[str]:
    """Yield the description of the plan."""
    begin = plan.start.state.step + 1
    by = f"{plan.ranks} ranks of " if plan.ranks > 1 else ""
    yield (
        f"run {plan.run.run_id}, branch of version {plan.branch.version}: from checkpoint "
        f"{plan.path.name} (step {plan.start.state.step}), {by}{threads} thread"
        f"{'' if threads == 1 else 's'}{' each' if by else ''}"
    )
    if begin < plan.first:
        last = plan.first - 1
        between = f"step {last} is" if begin == last else f"steps {begin}..{last} are"
        yield f"no checkpoint of step {last} was kept: {between} trained too"
    others = environment_differences(plan)
    if others:
        yield f"the bits may differ, for this is not as it was: {'; '.join(others)}"


def _step_line(step: RetrainedStep) -> str:
    if step.identical:
        verdict = "identical"
    elif not step.announced:
        verdict = "nothing to compare with: its digest is announced no more"
    elif step.difference is None:
        verdict = f"differs from {step.announced[:16]}; its weights file is gone"
    else:
        verdict = f"differs from {step.announced[:16]} by at most {step.difference:.3g}"
    return (
        f"step {step.step:>4}  version {step.version:>4}  {step.trajectories:>4} trajectories  "
        f"digest {step.digest[:16]}  {verdict}{'' if step.asked else ' (between)'}"
    )
