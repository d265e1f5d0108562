"""The verifier of a task, in `task.toml` under `[verifier]`: how its tests are run and parsed.

A grading opens a new box of the image with the task's original code, applies the patch, removes the
paths in `replace`, unpacks `tests/testbed/` over the work directory, runs the command there and
parses the outcome of each test. A patch is resolved if all of `fail_to_pass` and all of
`pass_to_pass` pass. The parser `exit-code` has no tests: exit code 0 is resolved, and both lists
are empty.
"""

from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollcall.sandbox.user_code import complaint

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
