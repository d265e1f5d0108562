"""The name of a task in a rollout: directory and digest, in the config of environment `shell`.

Only this module turns a task into a request, and a request into a task again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Limits

STEP_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 60.0


class TaskName(BaseModel):
    """A task directory on the worker's host, and its required digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    directory: Annotated[str, Field(pattern="^/[^\0]*$")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The digest, as `rollcall tasks check` prints it."""

    def find(self) -> HarborTask:
        """Read the task. Raises Refused if the directory is invalid, or another task."""
        task = read_task(Path(self.directory))
        if task.digest != self.digest:
            msg = (
                f"task {self.directory!r} is {task.digest[:16]}, but {self.digest[:16]} is asked "
                "for; has it been changed?"
            )
            raise Refused(msg)
        return task


def named_task(config: Mapping[str, Any]) -> HarborTask | None:
    """Read the task that a config of `shell` names; None if it names none. Raises Refused."""
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
    """Return the config of environment `shell` for a task.

    Limits and variables are the task's, and so is the image unless one is given; without `box` the
    driver is the worker's.
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
    """Return a line for `rollcall submit`; other agents than our programs are hosted ones.

    `max_tokens` limits each answer; 0 is the default of requests. The environment truncates `react`
    at its last turn, so that the patch is taken even if the agent never submits.
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
