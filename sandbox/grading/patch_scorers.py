"""Scorers of patches: whether one resolves its task, how much of it, and whether there is one."""

from sandbox.artefacts import PATCH, last_artefact
from sandbox.grading.recorded_work import graded
from sandbox.host import ScoringHost
from sandbox.scorers import Explained
from schemas.messages import Trajectory


async def resolved(trajectory: Trajectory, host: ScoringHost) -> Explained:
    """1 where the patch passes all tests that are to pass, in a fresh box; else 0."""
    verdict = await graded(trajectory, host)
    return Explained(float(verdict.resolved), str(verdict))


async def tests_passed(trajectory: Trajectory, host: ScoringHost) -> Explained:
    """The fraction of the tests to pass that passed; 0 for a run that is not believed."""
    verdict = await graded(trajectory, host)
    return Explained(verdict.passed, str(verdict))


def no_submission(trajectory: Trajectory) -> float:
    """1 where no patch was submitted, or an empty one: to be weighed by less than nothing."""
    patch = last_artefact(trajectory, PATCH)
    return float(patch is None or patch.size == 0)
