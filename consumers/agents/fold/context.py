"""The fold's dependencies, and the guard around all user code."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollcall.consumers.agents.effects import Program, WishFailed
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.interrupts import is_from_outside
from rollcall.schemas.untrusted_text import describe_exception

if TYPE_CHECKING:
    from random import Random


@dataclass(slots=True)
class DrawnOnce:
    """A seeded generator that is made on first use; most programs never use it."""

    make: Callable[[int], "Random"]
    seed: int
    made: "Random | None" = None

    def __call__(self) -> "Random":
        if self.made is None:
            self.made = self.make(self.seed)
        return self.made


@dataclass(frozen=True, slots=True)
class FoldContext:
    """The dependencies of the fold; none of them may depend on time or settings."""

    program_of: Callable[[str], Program]
    """Raises Refused for an unknown program."""
    random_of: Callable[[int], "Random"]
    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered around all code that runs a program or inspects a value that it yielded; may raise
    ProgramFailed inside it."""

    def failure(self, program_name: str, error: BaseException) -> ProgramFailed:
        """Convert an exception that was raised inside the guard to the failure of its rollout
        alone.

        A user's program may raise anything, even what ends a process. A WishFailed that was not
        caught ends the rollout with the effect's own code. An interrupt from outside is raised
        again.
        """
        if isinstance(error, ProgramFailed):
            return error
        if is_from_outside(error):
            raise error
        code = getattr(error, "code", None) if type(error) is WishFailed else None
        code = str(code) if type(code) in (str, FailureCode) else FailureCode.RAISED
        return ProgramFailed(code, f"program {program_name!r} raised {describe_exception(error)}")
