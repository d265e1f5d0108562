"""The figures of a run and of its policies as values and text, the same for both kinds of log.

Figures come from the run's records alone; only `wall_seconds` and memory are this process's.
"""

from collections.abc import Mapping
from typing import Any

from rollcall.compose.pages.phase_lines import phase_lines
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.consumers.history.runs.untrained import Untrained
from rollcall.trainer.config.curation import Curation


def figures_of(folder: RunFolder, curation: Curation | None = None) -> RunFigures:
    """Return empty figures of one policy: its steps, and held-out rollouts under its scoring.

    With the trainer's curation they show untrainable rollouts before the next step.
    """
    heldout = HeldOut(folder.heldout())
    figures = RunFigures(folder.run_id, folder.recipe.scoring_id, heldout, folder.policy_id)
    figures.untrained = None if curation is None else Untrained(curation)
    return figures


def figures_of_others(folder: RunFolder) -> dict[str, RunFigures]:
    """Return the figures of a run's policies other than the admitting one, by name."""
    return {other.part: figures_of(other) for other in folder.others()}


def summary_of(others: Mapping[str, RunFigures]) -> dict[str, Any]:
    """Summarise each policy by name; held-out versions are those of the admitting policy."""
    told = {}
    for name, figures in others.items():
        measured = figures.heldout.measured()
        told[name] = {
            "policy_id": figures.policy_id,
            "success_before": rounded(measured[0].success) if measured else None,
            "success_after": rounded(measured[-1].success) if measured else None,
            "steps": len(figures.steps),
            "dropped": figures.dropped(),
            "left_out": figures.left_out.plain(),
            "held_out_curve": figures.heldout.curve(),
        }
    return told


def policy_lines(others: Mapping[str, RunFigures]) -> list[str]:
    """Return a line for each policy."""
    return [f"{name}: {_words(figures)}" for name, figures in others.items()]


def _words(figures: RunFigures) -> str:
    measured = figures.heldout.measured()
    held_out = f"{measured[0]} before, {measured[-1]} after" if measured else "was not measured"
    left_out = f", left out {figures.left_out}" if figures.left_out.reported() else ""
    return f"held-out success {held_out}, {len(figures.steps)} steps{left_out}"


def rounded(success: float | None) -> float | None:
    """Round a held-out success for output; None if it was not measured."""
    return None if success is None else round(success, 4)


def summary(
    figures: RunFigures,
    others: Mapping[str, RunFigures],
    *,
    seed: int,
    wall_s: float,
    resumed: bool = False,
) -> dict[str, Any]:
    """Return every figure by its name."""
    measured = figures.heldout.measured()
    solved, starts = figures.heldout.starts(measured[-1].version) if measured else (0, 0)
    train_s = figures.train_seconds()
    calls = figures.model_calls if figures.calls_at_goal is None else figures.calls_at_goal
    return {
        "run_id": figures.run_id,
        "seed": seed,
        "success_before": rounded(measured[0].success) if measured else None,
        "success_after": rounded(measured[-1].success) if measured else None,
        "starts_solved": solved,
        "starts": starts,
        "goal": figures.goal(),
        "goal_reached": figures.goal_version is not None,
        "steps": len(figures.steps),
        "staleness_mean": figures.mean("staleness_mean"),
        "model_calls": calls,
        "model_calls_all": figures.model_calls,
        "rollouts": figures.rollouts,
        "rollouts_failed": figures.failures.count,
        "failures": figures.failures.plain(),
        "train_seconds": None if train_s is None else round(train_s, 2),
        "wall_seconds": round(wall_s, 2),
        "resumed": resumed,
        "turns_per_second": round(calls / train_s, 1) if train_s else None,
        "dropped": figures.dropped(),
        "left_out": figures.left_out.plain(),
        "timers": figures.phases.quantiles(),
        "environment_starts": figures.phases.starts(),
        "held_out_curve": figures.heldout.curve(),
        "held_out": figures.held_out(),
    } | ({"policies": summary_of(others)} if others else {})


def summary_lines(
    figures: RunFigures, others: Mapping[str, RunFigures], told: Mapping[str, Any]
) -> str:
    """Return the figures as lines of text."""
    lines = [
        _held_out(figures, told),
        *policy_lines(others),
        _sizes(figures, told),
        *phase_lines(figures.phases),
    ]
    if figures.failures.count:
        lines += [f"failed {figures.failures}", f"       {figures.failures.why()}"]
    return "\n".join(lines + figures.left_out.lines())


def _held_out(figures: RunFigures, told: Mapping[str, Any]) -> str:
    measured = figures.heldout.measured()
    if not measured:
        return "held-out success was not measured: no evaluation came to its end"
    goal = figures.goal()
    reached = "reached" if told["goal_reached"] else "missed"
    aim = "" if goal is None else f"; the goal of {goal:g} was {reached}"
    solved = f", {told['starts_solved']} of {told['starts']} starts solved by every seed"
    solved = "" if told["success_after"] is None else solved
    return f"held-out success {measured[0]} before, {measured[-1]} after{solved}{aim}"


def _sizes(figures: RunFigures, told: Mapping[str, Any]) -> str:
    calls = f"{told['model_calls_all']:,} model calls"
    if figures.calls_at_goal is not None:
        calls += f" ({figures.calls_at_goal:,} when the goal was reached)"
    until = "the goal" if figures.goal_ms else "the last record"
    train_s = told["train_seconds"]
    trained = "" if train_s is None else f"{train_s} s from the first rollout to {until}, "
    wall = f"{told['wall_seconds']} s {'since it was resumed' if told['resumed'] else 'in all'}"
    return f"{told['steps']} steps, {told['rollouts']:,} rollouts, {calls}, {trained}{wall}"
