"""What the fold is given from outside, and the wall around all that a user wrote."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.agents.wishes import Program, WishFailed
from schemas.errors import ProgramFailed
from schemas.foreign_text import raised
from schemas.interrupts import is_from_outside

if TYPE_CHECKING:
    from random import Random


@dataclass(slots=True)
class DrawnOnce:
    """A seeded generator that is made when it is first asked for; most programs never ask."""

    make: Callable[[int], "Random"]
    seed: int
    made: "Random | None" = None

    def __call__(self) -> "Random":
        if self.made is None:
            self.made = self.make(self.seed)
        return self.made


@dataclass(frozen=True, slots=True)
class World:
    """What the fold is given from outside; none of it may depend on time or settings."""

    program_of: Callable[[str], Program]
    """Raises Refused for a program that is not there."""
    random_of: Callable[[int], "Random"]
    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered around all that runs a program or looks at what it yielded; may raise ProgramFailed
    inside it."""

    def failure(self, program_name: str, error: BaseException) -> ProgramFailed:
        """What was raised inside the guard, as the end of its rollout alone.

        A user's program may raise anything, also what ends a process. A wish that failed and was
        not caught ends it by the wish's own code. Raises what came from outside again.
        """
        if isinstance(error, ProgramFailed):
            return error
        if is_from_outside(error):
            raise error
        code = getattr(error, "code", None) if type(error) is WishFailed else None
        code = code if type(code) is str else "raised"
        return ProgramFailed(code, f"program {program_name!r} raised {raised(error)}")
