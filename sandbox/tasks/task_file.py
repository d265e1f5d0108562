"""The schema of `task.toml`: Harbor's keys, and for the verifier our own.

It has Harbor's keys for tasks of one step; unknown keys are refused, since they would have no
effect. `[metadata]` may hold anything.

`[verifier]` says how a task's tests are run and parsed. A grading opens a new box of the image with
the task's original code, applies the patch, removes the paths in `replace`, unpacks
`tests/testbed/` over the work directory, runs the command there and parses the outcome of each
test. A patch is resolved if all of `fail_to_pass` and all of `pass_to_pass` pass. The parser
`exit-code` has no tests: exit code 0 is resolved, and both lists are empty.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rollcall.sandbox.user_code import complaint
from rollcall.schemas.names import hint

EXIT_CODE = "exit-code"
PARSERS = ("pytest", "unittest", "junit-xml", "go-test", "tap", EXIT_CODE)
"""Short names of parsers; a custom parser is named `module:function`."""

TestIds = Annotated[tuple[str, ...], Field(strict=False)]
"""Names of tests in the form that the parser returns."""
Paths = Annotated[tuple[str, ...], Field(strict=False)]


class Verifier(BaseModel):
    """Image, command and parser, and the tests to pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    command: str
    """The command, run by /bin/sh in the work directory."""
    parser: str
    """One of `PARSERS`, or `module:function`: it reads the outcome of each test from the command's
    output."""
    image: str = ""
    """The image for grading; empty for the agent's own."""
    timeout_sec: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """The time limit of the command."""
    env: dict[str, str] = {}
    """Environment variables of the command."""
    replace: Paths = ()
    """Files and folders below the work directory that are removed before the tests are put there,
    so a patch's changes to them have no effect."""
    fail_to_pass: TestIds = ()
    """Tests that fail at the start and must pass."""
    pass_to_pass: TestIds = ()
    """Tests that pass at the start and must still pass."""

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: str) -> str:
        if not command.strip() or "\0" in command:
            msg = "is empty or holds a NUL; it is how the tests are run"
            raise ValueError(msg)
        return command

    @field_validator("parser")
    @classmethod
    def _known(cls, parser: str) -> str:
        if wrong := complaint("parser", parser, dict.fromkeys(PARSERS, "")):
            raise ValueError(wrong)
        return parser

    @field_validator("replace")
    @classmethod
    def _below(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not is_below(path):
                msg = f"{path!r} is no plain path below the work directory"
                raise ValueError(msg)
        return paths

    @field_validator("fail_to_pass", "pass_to_pass")
    @classmethod
    def _each_once(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        seen = Counter(tests)
        for test, times in seen.items():
            if not test or times > 1:
                msg = f"holds {test!r} {times} times; a test has a name and stands there once"
                raise ValueError(msg)
        return tests

    @model_validator(mode="after")
    def _judges(self) -> Self:
        if self.parser == EXIT_CODE and (self.fail_to_pass or self.pass_to_pass):
            msg = f"parser {EXIT_CODE!r} knows no tests by name; leave both lists out"
            raise ValueError(msg)
        if self.parser != EXIT_CODE and not self.fail_to_pass:
            msg = "fail_to_pass is empty: there is nothing to mend, and an empty patch would do"
            raise ValueError(msg)
        if both := set(self.fail_to_pass) & set(self.pass_to_pass):
            msg = f"{min(both)!r} stands in fail_to_pass and in pass_to_pass"
            raise ValueError(msg)
        return self


def is_below(path: str) -> bool:
    """Return True if a path is relative, made of plain names, and below its directory."""
    parts = PurePosixPath(path).parts
    return bool(parts) and path == "/".join(parts) and ".." not in parts and "\0" not in path


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
