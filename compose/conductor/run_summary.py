"""The result of a run as figures and text, with one definition for both kinds of log.

Figures come from the run's records alone; only `wall_seconds` and memory are this process's.
"""

from collections.abc import Mapping
from typing import Any

from rollcall.compose.conductor.policy_figures import policy_lines, rounded, summary_of
from rollcall.compose.pages.phase_lines import phase_lines
from rollcall.consumers.history.runs.run_figures import RunFigures


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
