"""How a rollout names its task: by directory and digest, in the config of environment `shell`.

This is the one place that turns a task into a request's words, and those into a task again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.harbor import HarborTask, read_task
from schemas.errors import Refused
from schemas.messages import Limits

STEP_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 60.0


class TaskName(BaseModel):
    """A directory on the worker's host, and what it must hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    directory: Annotated[str, Field(pattern="^/[^\0]*$")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """As `rollcall tasks check` says it."""

    def find(self) -> HarborTask:
        """The task of that name. Raises Refused where the directory is bad, or another task."""
        task = read_task(Path(self.directory))
        if task.digest != self.digest:
            msg = (
                f"task {self.directory!r} is {task.digest[:16]}, but {self.digest[:16]} is asked "
                "for; has it been changed?"
            )
            raise Refused(msg)
        return task


def named_task(config: Mapping[str, Any]) -> HarborTask | None:
    """The task that a config of `shell` names, None where it names none. Raises Refused."""
    if config.get("task") is None:
        return None
    try:
        return TaskName.model_validate(config["task"]).find()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["task", *map(str, first["loc"])])
        msg = f"task.environment_config.{place}: {first['msg']}; it is a directory and a digest"
        raise Refused(msg) from error


def environment_config(
    task: HarborTask, *, box: str = "", env: Mapping[str, str] | None = None, image: str = ""
) -> dict[str, Any]:
    """The config of environment `shell` in which an agent works at a task.

    Limits and variables are the task's, image too unless one is named; without `box` it is the
    worker's.
    """
    return {
        **({"box": box} if box else {}),
        **({"image": image} if image else {}),
        "mode": task.file.environment.mode,
        "task": {"directory": str(task.directory), "digest": task.digest},
        **({"env": dict(env)} if env else {}),
        "timeout_s": COMMAND_TIMEOUT_S,
    }


def request_of(
    task: HarborTask,
    *,
    agent: str,
    box: str = "",
    env: Mapping[str, str] | None = None,
    max_tokens: int = 0,
    image: str = "",
) -> dict[str, Any]:
    """A line for `rollcall submit`; an agent that is no program of ours is a hosted one's name.

    `max_tokens` is of each answer; 0 leaves it to what requests have by themselves. `react` is cut
    off by its environment at its last turn, which so takes the work of whoever never hands in.
    """
    ours = agent in ("react", "single_turn") or ":" in agent
    hosted = {} if ours else {"agent_config": {"agent": agent}}
    turns = Limits().max_turns
    config = environment_config(task, box=box, env=env, image=image)
    return {
        "agent": agent if ours else "hosted",
        **hosted,
        **({"sampling": {"max_tokens": max_tokens}} if max_tokens else {}),
        "task": {
            "task_id": task.name,
            "prompt": task.instruction,
            "environment": "shell",
            "environment_config": {**config, "max_steps": turns} if agent == "react" else config,
        },
        "limits": {
            **({"max_turns": turns} if agent == "react" else {}),
            "step_timeout_s": STEP_TIMEOUT_S,
            "rollout_timeout_s": task.file.agent.timeout_sec,
        },
    }
