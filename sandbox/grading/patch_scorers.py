"""Scorers of patches: resolved or not, the fraction of tests passed, and a missing patch."""

from rollcall.sandbox.artefacts import PATCH, last_artefact
from rollcall.sandbox.grading.recorded_work import graded
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.scorers import Explained
from rollcall.schemas.messages import Trajectory


async def resolved(trajectory: Trajectory, host: ScoringHost) -> Explained:
    """Return 1 if the patch passes all tests that are to pass, in an unused box; else 0."""
    verdict = await graded(trajectory, host)
    return Explained(float(verdict.resolved), str(verdict))


async def tests_passed(trajectory: Trajectory, host: ScoringHost) -> Explained:
    """Return the fraction of the tests to pass that passed; 0 for an invalid run."""
    verdict = await graded(trajectory, host)
    return Explained(verdict.passed, str(verdict))


def no_submission(trajectory: Trajectory) -> float:
    """Return 1 if no patch or an empty one was submitted; give it a negative weight."""
    patch = last_artefact(trajectory, PATCH)
    return float(patch is None or patch.size == 0)
