"""The figures of each policy of a run: one for most runs, several where a rollout asks several."""

from collections.abc import Mapping
from typing import Any

from compose.runs.run_folder import RunFolder
from consumers.heldout import HeldOut
from consumers.history.run_figures import RunFigures


def figures_of(folder: RunFolder) -> RunFigures:
    """Empty ones, of one policy: its steps, and the run's held-out rollouts under its scoring."""
    heldout = HeldOut(folder.heldout())
    return RunFigures(folder.run_id, folder.recipe.scoring_id, heldout, folder.policy_id)


def figures_of_others(folder: RunFolder) -> dict[str, RunFigures]:
    """The same of a run's policies beside the one that admits, by their names."""
    return {other.part: figures_of(other) for other in folder.others()}


def summary_of(others: Mapping[str, RunFigures]) -> dict[str, Any]:
    """What became of each of them, by name: held-out versions are those of the one that admits."""
    told = {}
    for name, figures in others.items():
        curve = figures.heldout.curve()
        told[name] = {
            "policy_id": figures.policy_id,
            "success_before": round(curve[0][1], 4) if curve else None,
            "success_after": round(curve[-1][1], 4) if curve else None,
            "steps": len(figures.steps),
            "dropped": figures.dropped(),
            "held_out_curve": curve,
        }
    return told


def words_of(others: Mapping[str, RunFigures]) -> str:
    """A line for each of them."""
    return "".join(
        f"{name}: held-out success {one['success_before']} before, {one['success_after']} after, "
        f"{one['steps']} steps\n"
        for name, one in summary_of(others).items()
    )
