"""Retraining of a run's steps, as they were or with a changed learner, with progress output."""

import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from rollcall.compose.runs.export_policy import export_state
from rollcall.compose.runs.held_out_trial import HeldOutSuccess, held_out, require_alone
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
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
from rollcall.consumers.history.runs.what_if import OtherwiseStep, WhatIf, require_trainable
from rollcall.schemas.atomic_files import require_unused
from rollcall.schemas.errors import Refused
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.learner_table import FLAT_NAMES


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
        "run_id": run.run_id,
        "checkpoint": ahead.path.name,
        "without_task": without_task,
        "weights_digest_then": ahead.announced[ahead.branch.steps[ahead.last].version],
        "steps": told,
    }
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


def changed_learner(folder: RunFolder, changes: Sequence[str]) -> LearnerConfig:
    """Return the recipe's learner with each `learner.KEY=VALUE` applied; raises Refused."""
    values = folder.recipe.learner_values(folder.seed)
    for change in changes:
        path, is_there, text = change.partition("=")
        keys = path.strip().split(".")
        if not is_there or keys[0] != "learner" or len(keys) not in (2, 3) or not all(keys):
            msg = (
                f"--with {change!r} is no setting of the learner; write learner.KEY=VALUE or "
                "learner.RULE.OPTION=VALUE, such as learner.loss.name=m2po"
            )
            raise Refused(msg)
        _set(values, keys[1:], _value(text.strip()))
    return LearnerConfig.of(values)


def _set(values: dict[str, Any], keys: list[str], value: object) -> None:
    """Set a value, or an option of a rule; a new rule name drops the options of the old one."""
    rule, option = keys[0], keys[-1]
    if len(keys) == 1 or (rule, option) in FLAT_NAMES:
        values[FLAT_NAMES.get((rule, option), rule)] = value
        return
    known = values.get(rule)
    given = dict(known) if isinstance(known, dict) else {"name": known} if known else {}
    values[rule] = {"name": value} if option == "name" else {**given, option: value}


def _value(text: str) -> object:
    """Parse a value as TOML, else keep it as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def what_if(
    history: History,
    folder: RunFolder,
    steps: tuple[int, int],
    changes: Sequence[str],
    without_task: str,
    *,
    version: int | None,
    threads: int,
    out: Path | None,
    tell: Callable[[str], None],
    playing: Settings | None = None,
) -> dict[str, Any]:
    """Train, report, and write the policy to `out`; raises Refused before it trains.

    With `playing`, both results are evaluated on the run's held-out seeds.
    """
    if playing is not None:
        require_alone(folder)
    if out is not None:
        require_unused(out.expanduser().absolute(), "--out")
    config = changed_learner(folder, changes)
    report, (then, now) = train_otherwise(
        history,
        folder.trained(),
        steps,
        config,
        version=version,
        without_task=without_task,
        threads=threads,
        tell=tell,
    )
    if out is not None:
        export_state(folder, now, out)
        tell(f"the other policy is in {out}; `rollcall publish-policy` serves it beside the run's")
    if playing is not None:
        report |= _compared(folder, {"then": then, "now": now}, playing, tell)
    return report | {"with": list(changes)}


def _compared(
    folder: RunFolder,
    states: Mapping[str, LearnerState],
    settings: Settings,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Evaluate both results on the held-out seeds; report them in lines and return them."""
    with tempfile.TemporaryDirectory(prefix="rollcall-what-if-") as scratch:
        directories = {name: Path(scratch) / name for name in states}
        for name, state in states.items():
            export_state(folder, state, directories[name])
        found = held_out(folder, directories, settings)
    for line in success_lines(found["then"], found["now"]):
        tell(line)
    return {"held_out": {name: each.share for name, each in found.items()}}
