"""The schema of `task.toml`: Harbor's keys, and for the verifier our own.

It has Harbor's keys for tasks of one step; unknown keys are refused, since they would have no
effect. `[metadata]` may hold anything.
"""

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rollcall.sandbox.tasks.verifier import Verifier
from rollcall.schemas.names import hint

MEBIBYTE = 1 << 20

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class StrictPart(BaseModel):
    """A table of `task.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AgentPart(StrictPart):
    timeout_sec: Seconds = 3600.0
    """The time limit of a whole rollout."""


class SolutionPart(StrictPart):
    env: dict[str, str] = {}


class EnvironmentPart(StrictPart):
    """The box that an agent works in."""

    docker_image: str = ""
    """The image; empty: one built from `environment/Dockerfile`, or else the host's programs."""
    workdir: str = "/testbed"
    """The path of the task's files in an image; other boxes use their own directory. If it is set
    beside `environment/testbed/`, the task's own image has those files there."""
    mode: Literal["persistent", "ephemeral"] = "persistent"
    build_timeout_sec: Seconds = 600.0
    cpus: Annotated[float, Field(gt=0)] = 1.0
    memory_mb: Annotated[int, Field(ge=16)] = 2048
    storage_mb: Annotated[int, Field(ge=1)] = 10_240
    allow_internet: Literal[False] = False
    """Always false: boxes have no network."""
    env: dict[str, str] = {}

    def stated_limits(self) -> dict[str, float]:
        """Return the fields of `rollcall.sandbox.boxes.box.BoxLimits` that the file sets."""
        limits = {
            "memory_mb": ("memory_bytes", self.memory_mb * MEBIBYTE),
            "storage_mb": ("disk_bytes", self.storage_mb * MEBIBYTE),
            "cpus": ("cpus", self.cpus),
        }
        return dict(limits[key] for key in limits if key in self.model_fields_set)

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, workdir: str) -> str:
        if not workdir.startswith("/") or "\0" in workdir:
            msg = f"{workdir!r} is no absolute path"
            raise ValueError(msg)
        return workdir


class TaskFile(StrictPart):
    version: str = "1.0"
    metadata: dict[str, Any] = {}
    agent: AgentPart = AgentPart()
    environment: EnvironmentPart = EnvironmentPart()
    solution: SolutionPart = SolutionPart()
    verifier: Verifier


def parsed(text: str) -> tuple[TaskFile | None, list[str]]:
    """Parse a `task.toml`; return it, or None and the error of each key."""
    try:
        return TaskFile.model_validate(tomllib.loads(text)), []
    except tomllib.TOMLDecodeError as error:
        return None, [f"is not TOML: {error}"]
    except ValidationError as error:
        return None, [_complaint(dict(item)) for item in error.errors()]


def _complaint(error: Mapping[str, Any]) -> str:
    place = [str(part) for part in error["loc"]]
    key = ".".join(place)
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "extra_forbidden":
        return f"{key} is no key that is known here; {hint(key, _keys(TaskFile))}"
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{key}: {said}"
    return f"{key}: {said}, found {str(error['input'])[:80]!r}"


def _keys(model: type[BaseModel], above: str = "") -> list[str]:
    """Return all keys below a table, with their full names."""
    found = []
    for name, field in model.model_fields.items():
        part = field.annotation
        inner = isinstance(part, type) and issubclass(part, BaseModel)
        found += _keys(part, f"{above}{name}.") if inner else [f"{above}{name}"]  # type: ignore[arg-type]
    return found
