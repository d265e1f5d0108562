"""The config of the environment `shell`: the box, its limits, and the end of an episode.

It is validated twice: by the producer (`check_shell`), and by the worker that opens it.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rollcall.sandbox.agents.agent_box import FINISH_WORD
from rollcall.sandbox.boxes.box import BoxLimits, Spec
from rollcall.sandbox.boxes.driver_name import DriverName
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.task_names import TaskName
from rollcall.schemas import names
from rollcall.schemas.errors import Refused

FILES_BYTES = 16 << 20
MOST_FILES = 10_000
NAME_BYTES, PATH_BYTES = 255, 1024
"""The longest part of a path that file systems allow, and a safe length of a whole path."""
ENV_CHARS = 16_384
IMAGE_CHARS = 255
MOST_SAID = 5
ELSEWHERE = "elsewhere"
"""The key of a validation context which says that paths are on another host."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Chars = Annotated[int, Field(ge=0, le=1_000_000)]
MOST_BYTES = 1 << 50
Mode = Literal["persistent", "ephemeral"]


class ShellLimits(BaseModel):
    """Overrides of the defaults of `rollcall.sandbox.boxes.box.BoxLimits`; 0 is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    memory_bytes: Annotated[int | None, Field(ge=0, le=MOST_BYTES)] = None
    processes: Annotated[int | None, Field(ge=0, le=1 << 22)] = None
    file_bytes: Annotated[int | None, Field(ge=0, le=MOST_BYTES)] = None
    open_files: Annotated[int | None, Field(ge=0, le=1 << 20)] = None
    disk_bytes: Annotated[int | None, Field(ge=0, le=MOST_BYTES)] = None
    cpus: Annotated[float | None, Field(ge=0, le=4096)] = None

    @model_validator(mode="after")
    def _enough(self) -> Self:
        for name, least in LEAST.items():
            found = getattr(self, name)
            if found and found < least:
                msg = f"{name} is {found}, and no shell starts below {least:,}; 0 is no limit"
                raise ValueError(msg)
        return self

    def within(self, task: HarborTask | None) -> BoxLimits:
        """Return the limits, each at most the one that the task states."""
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        for name, most in (task.file.environment.stated_limits() if task else {}).items():
            given[name] = min(given.get(name) or most, most)
        return BoxLimits(**given)


LEAST: Mapping[str, float] = {
    "memory_bytes": 16 << 20,
    "processes": 8,
    "open_files": 16,
    "disk_bytes": 1 << 20,
    "cpus": 0.01,
}
"""The least limits with which a box can run its first command."""


class ShellConfig(BaseModel):
    """The start and the end of an episode."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    box: DriverName | None = None
    """The driver of the box; None is the worker's `environments.box`."""
    image: Annotated[str, Field(max_length=IMAGE_CHARS, pattern="^[!-~]*$")] = ""
    """The image of the box, as `rollcall images list` or an engine names it; empty: the task's,
    else the host's programs."""
    limits: ShellLimits = ShellLimits()
    """The limits of the box, each at most the one that its task states."""
    mode: Mode = "persistent"
    """The pool mode: `persistent` may use a box that was started ahead, `ephemeral` starts one."""
    instruction: str = ""
    """The beginning of the first observation."""
    task: TaskName | None = None
    """A task directory in Harbor's format: its files come before `path` and `files`, committed as
    `base`, and its instruction is used if none is given here."""
    files: dict[str, str] = {}
    """Initial files of the directory, by path; executable if they begin with `#!`."""
    path: str = ""
    """A directory of the worker's host whose content is copied in before `files`."""
    env: dict[str, str] = {}
    """Variables to add to those of `rollcall.sandbox.boxes.box.VARIABLES`, or to replace them."""
    timeout_s: Seconds = 30.0
    """The time limit of one command; keep it below the rollout's `step_timeout_s`."""
    stateful: bool = True
    """True if directory, variables and functions stay from command to command."""
    head_chars: Chars = 5000
    tail_chars: Chars = 5000
    """The characters shown from the beginning and the end of each output."""
    max_steps: Annotated[int, Field(ge=0)] = 0
    """The number of commands after which the episode is truncated; 0 is no limit."""
    finish_word: str = FINISH_WORD
    """A command with exit code 0 that prints this as its first line ends the episode."""
    check: str = ""
    """A command run in a new shell at the end of the episode: exit code 0 is a reward of 1."""
    check_timeout_s: Seconds = 60.0
    agent: dict[str, Any] | None = None
    """The `agent_config` of an agent that runs in this box: its imports are mounted too."""
    replay: bool = True
    """True if a lost episode may be rebuilt by running its commands again."""

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        size = sum(len(name) + len(content) for name, content in files.items())
        if size > FILES_BYTES or len(files) > MOST_FILES:
            msg = f"{len(files):,} files of {size:,} characters; "
            msg += f"{MOST_FILES:,} of {FILES_BYTES:,} can be, and `path` names a directory"
            raise ValueError(msg)
        for name in files:
            if wrong := _wrong(name):
                msg = f"file {name[:100]!r} {wrong}"
                raise ValueError(msg)
        return files

    @field_validator("env")
    @classmethod
    def _variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                msg = f"variable {name[:100]!r} is none: a name without '=', and no NUL"
                raise ValueError(msg)
        if (size := sum(map(len, (*env, *env.values())))) > ENV_CHARS:
            msg = f"variables of {size:,} characters; {ENV_CHARS:,} can be"
            raise ValueError(msg)
        return env

    @field_validator("path")
    @classmethod
    def _directory(cls, path: str, info: ValidationInfo) -> str:
        there = os.path.isabs(path) and "\0" not in path
        if there and not (info.context or {}).get(ELSEWHERE):
            there = os.path.isdir(path)
        if path and not there:
            msg = f"{path!r} is no absolute path of a directory on the worker's host"
            raise ValueError(msg)
        return path

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.box == "local" and self.image:
            msg = f"box 'local' is a directory, which has no image; {self.image!r} is asked for"
            raise ValueError(msg)
        return self

    def spec(self, task: HarborTask | None) -> Spec:
        """Return the spec of its box, with the settings of its task."""
        environment = task.file.environment if task else None
        image, build = self.image, None
        if task and not image:
            image, build = task.image, task.build
        own = environment.env if environment else {}
        variables = {**own, **self.env}
        return Spec(image=image, limits=self.limits.within(task), env=variables, build=build)


def read_config(config: Mapping[str, Any], *, elsewhere: bool = False) -> ShellConfig:
    """Validate a config. Raises Refused, with one line that names every wrong key.

    `elsewhere`: it will be opened on another host, so its directories are not checked.
    """
    try:
        return ShellConfig.model_validate(config, context={ELSEWHERE: elsewhere})
    except ValidationError as error:
        wrong = "; ".join(_complaint(dict(item)) for item in error.errors()[:MOST_SAID])
        if (more := error.error_count() - MOST_SAID) > 0:
            wrong += f"; and {more:,} more"
        msg = f"the config of environment 'shell' does not fit: {wrong}"
        raise Refused(msg) from error


def check_shell(config: Mapping[str, Any]) -> None:
    """Refuse a config that every worker would refuse. Raises Refused."""
    read_config(config, elsewhere=True)


def _wrong(name: str) -> str:
    """Return why a file cannot have this name; empty if it can."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path; files lie below the directory"
    if {"", ".", ".."} & set(parts):
        return "leads nowhere below the directory: write plain names parted by '/'"
    try:
        size, longest = len(name.encode()), max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "has characters that UTF-8 cannot carry"
    if "\0" in name or longest > NAME_BYTES or size > PATH_BYTES:
        return f"is no name: no NUL, at most {NAME_BYTES} bytes in each part, {PATH_BYTES} in all"
    return ""


def _complaint(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = [
            *ShellConfig.model_fields,
            *(f"limits.{name}" for name in ShellLimits.model_fields),
        ]
        return f"{place!r} is no key of it; {names.hint(place, known)}"
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and place in ("", "limits"):
        return f"{place}: {said}".removeprefix(": ")  # the message already shows the value
    return f"{place}: {said}, found {str(error['input'])[:200]!r}"
