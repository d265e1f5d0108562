"""Scorers of patches: resolved or not, the fraction of tests passed, and a missing patch.

The task to be judged is named in the config of its environment,
`{"task": {"directory": ..., "digest": ...}}`: the directory is read, and refused if its digest
differs. The patch is the last artefact named `rollcall.sandbox.artefacts.PATCH`.
"""

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollcall.sandbox.artefacts import PATCH, last_artefact
from rollcall.sandbox.grading.grading import grade, too_long
from rollcall.sandbox.grading.patches import MOST_BYTES, too_large
from rollcall.sandbox.grading.reference import Reference, reference_of
from rollcall.sandbox.grading.verdict import Verdict
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.scorers import Explained
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.messages import Trajectory

TASK_KEY = "task"
TASKS_KEPT = 16
"""The number of references that are cached in memory; each may be some megabytes."""


async def graded(trajectory: Trajectory, host: ScoringHost) -> Verdict:
    """Return the verdict on a trajectory's patch, made once for all its scorers.

    Without a patch its code is `no_patch`. Raises WorkFailed, ObjectLost, Unavailable.
    """
    return await host.once("grading", lambda: _graded(trajectory, host))


async def _graded(trajectory: Trajectory, host: ScoringHost) -> Verdict:
    directory, digest = task_named(trajectory)
    patch = last_artefact(trajectory, PATCH)
    if patch is None:
        return Verdict("no_patch", "nothing was submitted")
    if patch.size > MOST_BYTES:
        return too_large(patch.size)
    content = await host.fetch(patch.claim)
    reference = await asyncio.to_thread(_reference, directory, digest)
    if wrong := too_long(reference.verifier.timeout_sec, host.timeout_s):
        msg = f"task {directory!r}: {wrong}"
        raise _bad_task(msg)
    return await grade(host.open_box, reference, content, within_s=host.timeout_s)


def task_named(trajectory: Trajectory) -> tuple[str, str]:
    """Return directory and digest of a trajectory's task. Raises WorkFailed(`bad_task`)."""
    if trajectory.request is None:
        msg = f"rollout {trajectory.rollout_id!r} has no request that could be read"
        raise _bad_task(msg)
    config = _config(trajectory.request.task.environment_config)
    named = config.get(TASK_KEY)
    if not isinstance(named, dict):
        msg = f"the environment's config of rollout {trajectory.rollout_id!r} names no task: "
        raise _bad_task(msg + '"task": {"directory": ..., "digest": ...}')
    directory, digest = named.get("directory"), named.get("digest")
    if not isinstance(directory, str) or not isinstance(digest, str):
        msg = f"a task is named by its directory and its digest, found {named!r}"
        raise _bad_task(msg)
    return directory, digest


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


@lru_cache(TASKS_KEPT)
def _reference(directory: str, digest: str) -> Reference:
    """Read a task's reference. Raises WorkFailed(`bad_task`)."""
    try:
        task = read_task(Path(directory))
    except (Refused, OSError) as error:
        raise _bad_task(str(error)) from error
    if task.digest != digest:
        msg = f"task {directory!r} is not the one that was worked on: its digest is "
        msg += f"{task.digest[:16]}, {digest[:16]} was named"
        raise _bad_task(msg)
    try:
        return reference_of(task)
    except OSError as error:
        msg = f"task {directory!r} cannot be read: {error}"
        raise _bad_task(msg) from error


def _bad_task(message: str) -> WorkFailed:
    return WorkFailed(FailureCode.BAD_TASK, message, retriable=False)


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
