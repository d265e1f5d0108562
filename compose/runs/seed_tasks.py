"""The tasks that a run's seeds stand for: a folder of task directories, ordered by name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from rollcall.compose.runs.recipe import Recipe
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.listing import read_tasks
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Task


def suite_of(recipe: Recipe, instead: Path | None = None) -> Path | None:
    """Return the folder of a recipe's tasks; None if its seeds are only numbers.

    Raises Refused if `instead` is given for a recipe without tasks.
    """
    if not recipe.task.tasks:
        if instead is None:
            return None
        msg = f"--tasks is for recipes over task directories; the seeds of {recipe.name!r} are none"
        raise Refused(msg)
    return (instead or recipe.task.suite()).absolute()


def digests_of(suite: Path) -> dict[str, str]:
    """Return the digests of its tasks by name. Raises Refused if one is bad, or there is none."""
    return {task.name: task.digest for task in _read(suite)}


def tasks_in(suite: Path, shared: Task, known: Mapping[str, str] | None = None) -> tuple[Task, ...]:
    """Return each task as rollouts name it; a task's own config overrides the shared one.

    Raises Refused if one does not match its known digest.
    """
    found = _read(suite)
    if known is not None and {task.name: task.digest for task in found} != known:
        msg = f"the tasks in {suite} were changed since this run began; it needs what they were"
        raise Refused(msg)
    config: dict[str, Any] = orjson.loads(shared.environment_config or "{}")
    return tuple(_task(task, shared, config) for task in found)


def _task(task: HarborTask, shared: Task, config: Mapping[str, Any]) -> Task:
    whole = {**environment_config(task, box=""), **config}
    return replace(
        shared,
        task_id=task.name,
        prompt=task.instruction,
        environment_config=orjson.dumps(whole).decode(),
    )


def _read(suite: Path) -> list[HarborTask]:
    # Resolved paths: a link may be gone before their rollouts are scored.
    return read_tasks(suite.resolve())
