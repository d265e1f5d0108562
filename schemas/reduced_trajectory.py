"""Reduced forms of a trajectory that is too large or cannot be encoded.

The groups downstream wait for every rollout, so a record is always written. Every form has the
rollout's ids, its end, and its place in the journal.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from rollcall.schemas.errors import TooLarge, WireError
from rollcall.schemas.messages import RolloutRequest, Task, Trajectory


def reduced_forms(trajectory: Trajectory) -> Iterator[Trajectory]:
    """Yield it without sequences and steps; then also without result, task texts, and request."""
    bare = replace(trajectory, sequences=None, steps=None)
    yield bare
    yield (bare := replace(bare, result=""))
    if bare.request is not None:
        yield replace(bare, request=_thin(bare.request))
        yield replace(bare, request=None)


def write_reduced_form(
    trajectory: Trajectory, write: Callable[[Trajectory], None], error: Exception
) -> None:
    """Write the first form that can be written. Raises `error` if none can be."""
    for bare in reduced_forms(trajectory):
        with suppress(TooLarge, WireError):
            write(bare)
            return
    raise error


def _thin(request: RolloutRequest) -> RolloutRequest:
    """Return the request without the texts of its task, which are in the journal."""
    task = Task(request.task.environment, seed=request.task.seed, task_id=request.task.task_id)
    sampling = replace(request.sampling, stop=())
    return replace(request, task=task, agent_config="", sampling=sampling)
