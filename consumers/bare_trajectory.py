"""A trajectory with less and less in it, for where the whole of it cannot be written.

Everybody downstream waits for every rollout, so something is always written: its ids, how it ended
and where it stands in the journal remain to the last.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from schemas.errors import TooLarge, WireError
from schemas.messages import RolloutRequest, Task, Trajectory


def barer(trajectory: Trajectory) -> Iterator[Trajectory]:
    """Without what was said and done; then without its result, its task, its request."""
    bare = replace(trajectory, sequences=None, steps=None)
    yield bare
    yield (bare := replace(bare, result=""))
    if bare.request is not None:
        yield replace(bare, request=_thin(bare.request))
        yield replace(bare, request=None)


def write_barer(
    trajectory: Trajectory, write: Callable[[Trajectory], None], error: Exception
) -> None:
    """Write the first of them that can be written; raises the error of the whole where none can."""
    for bare in barer(trajectory):
        with suppress(TooLarge, WireError):
            write(bare)
            return
    raise error


def _thin(request: RolloutRequest) -> RolloutRequest:
    """Whose request it was; what was to be done stands in the journal."""
    task = Task(request.task.environment, seed=request.task.seed, task_id=request.task.task_id)
    sampling = replace(request.sampling, stop=())
    return replace(request, task=task, agent_config="", sampling=sampling)
