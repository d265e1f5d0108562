"""How a task's tests are run and read: what stands in `task.toml` under `[verifier]`.

A grading takes a fresh box of the image with the task's code as it was at the start, applies the
patch, removes what `replace` names, lays `tests/testbed/` over the work directory, runs the command
there and lets the parser say what became of each test. Resolved means: all of `fail_to_pass` and
all of `pass_to_pass`. The parser `exit-code` knows no tests: 0 is resolved, and both lists are
empty.
"""

from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sandbox.foreign import complaint

EXIT_CODE = "exit-code"
PARSERS = ("pytest", "unittest", "junit-xml", "go-test", "tap", EXIT_CODE)
"""Short names; a parser of one's own goes by `module:function`."""

TestIds = Annotated[tuple[str, ...], Field(strict=False)]
"""As the parser names them."""
Paths = Annotated[tuple[str, ...], Field(strict=False)]


class Verifier(BaseModel):
    """Image, command and parser, and which tests there are to pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    command: str
    """Run by /bin/sh in the work directory."""
    parser: str
    """One of `PARSERS`, or `module:function`: reads from the command's output what became of each
    test."""
    image: str = ""
    """Empty: the one that the agent worked in."""
    timeout_sec: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long the command may take."""
    env: dict[str, str] = {}
    """Variables for the command."""
    replace: Paths = ()
    """Files and folders below the work directory that are removed before the tests are put there:
    whatever a patch has made of them counts for nothing."""
    fail_to_pass: TestIds = ()
    """Tests that fail at the start and are to pass."""
    pass_to_pass: TestIds = ()
    """Tests that pass at the start and are to go on passing."""

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
    """Whether a path leads, by plain names, to something below the directory that it is in."""
    parts = PurePosixPath(path).parts
    return bool(parts) and path == "/".join(parts) and ".." not in parts and "\0" not in path
