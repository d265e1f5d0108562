"""The figures of each policy of a run; a run has several if its rollouts call several."""

from collections.abc import Mapping
from typing import Any

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
